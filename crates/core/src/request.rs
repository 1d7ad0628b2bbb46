//! What somebody asks to have run.
//!
//! Everything here was parsed at the edge: an argument can't hold a NUL byte, a variable's name
//! can't hold `=`, a file's name can't leave the working directory. Nothing further in has to
//! check again.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};

/// One run, as asked for. What it may do is the policy's business.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What to run.
    pub program: Program,
    /// Files to put into the working directory first.
    pub files: Vec<File>,
    /// Variables for this program alone, on top of those of the policy; a later one of a name wins.
    pub environment: Vec<Variable>,
    /// Words that travel to the Outcome and the audit unchanged.
    pub labels: BTreeMap<String, String>,
    /// The private terminal that the program gets, if it gets one.
    pub terminal: Option<WindowSize>,
    /// Whether what the program changes in its working directory is taken out.
    pub collect: bool,
}

/// The size of a terminal's window, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Columns.
    pub columns: u16,
    /// Rows.
    pub rows: u16,
}

/// What to run. A backend says by `fit` whether it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A program of the sandbox's own file system, with its arguments; never empty.
    Command(Argv),
    /// Source code in a language whose interpreter the backend chooses.
    Script(Script),
}

/// A program and its arguments, passed as they are: no shell splits them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argv {
    program: CString,
    args: Vec<CString>,
}

impl Argv {
    /// A program, to be found in `PATH` unless it holds a slash, and its arguments.
    #[must_use]
    pub fn new(program: CString, args: Vec<CString>) -> Self {
        Argv { program, args }
    }

    /// The program as it was named.
    #[must_use]
    pub fn program(&self) -> &CStr {
        &self.program
    }

    /// Everything after the program.
    #[must_use]
    pub fn args(&self) -> &[CString] {
        &self.args
    }

    /// The program and its arguments, as `execve` takes them.
    pub fn words(&self) -> impl Iterator<Item = &CStr> {
        std::iter::once(self.program.as_c_str()).chain(self.args.iter().map(CString::as_c_str))
    }
}

/// Source code with the arguments it sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The language.
    pub lang: Lang,
    /// Where the code came from, which decides `argv[0]` and what a traceback shows.
    pub origin: Origin,
    /// The code. Empty where it lies in the workspace, which has it already.
    pub source: Vec<u8>,
    /// The arguments after the script.
    pub args: Vec<CString>,
}

/// Where a script's code came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file of this name, which lies in the working directory while it runs.
    File(FileName),
    /// The command line (`-c`).
    Inline,
    /// Standard input (`-`), which is empty afterwards.
    Stdin,
    /// A file of the workspace, which is the working directory: it is run where it lies.
    Workspace(WorkspacePath),
}

/// A language that `run` knows by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lang {
    /// JavaScript (`.js`, `.mjs`, `.cjs`), run by Node.
    JavaScript,
    /// Python 3 (`.py`).
    Python,
    /// POSIX shell (`.sh`).
    Shell,
}

impl Lang {
    /// Every language.
    pub const ALL: &[Lang] = &[Lang::JavaScript, Lang::Python, Lang::Shell];

    /// The name that `--lang` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Lang::JavaScript => "javascript",
            Lang::Python => "python",
            Lang::Shell => "sh",
        }
    }

    /// The language of a file, by its name's extension.
    #[must_use]
    pub fn of_extension(extension: &str) -> Option<Lang> {
        match extension {
            "cjs" | "js" | "mjs" => Some(Lang::JavaScript),
            "py" => Some(Lang::Python),
            "sh" => Some(Lang::Shell),
            _ => None,
        }
    }

    /// The language of a shebang line, if its interpreter is one that we know.
    ///
    /// Understands `#!/usr/bin/python3`, `#!/usr/bin/env python3` and `#!/usr/bin/env -S node`.
    #[must_use]
    pub fn of_shebang(source: &[u8]) -> Option<Lang> {
        let line = source.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.split_whitespace().filter(|word| *word != "-S");
        let first = words.next()?.rsplit('/').next()?;
        let interpreter = if first == "env" { words.next()? } else { first };
        let interpreter = interpreter.rsplit('/').next()?;
        match interpreter.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
            "node" => Some(Lang::JavaScript),
            "python" => Some(Lang::Python),
            "sh" => Some(Lang::Shell),
            _ => None,
        }
    }
}

/// A file to put into the working directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name there.
    pub name: FileName,
    /// What it holds.
    pub bytes: Vec<u8>,
    /// Whether the program may execute it.
    pub executable: bool,
}

/// The name of a file in the working directory: one component, no NUL, not `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileName(CString);

/// Why something can't be a file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFileName {
    /// Nothing, `.` or `..`.
    #[error("a file's name can't be empty, `.` or `..`")]
    Reserved,
    /// A byte that no name of a single file can hold.
    #[error("a file's name can't hold a slash or a NUL byte")]
    Separator,
    /// Linux's own bound: NAME_MAX in `linux/limits.h`.
    #[error("a file's name can't be longer than 255 bytes")]
    TooLong,
}

impl FileName {
    /// Takes a name if it is one.
    ///
    /// # Errors
    ///
    /// [`BadFileName`] says which rule it breaks.
    pub fn new(name: impl Into<Vec<u8>>) -> Result<Self, BadFileName> {
        let name = name.into();
        match name.as_slice() {
            b"" | b"." | b".." => Err(BadFileName::Reserved),
            bytes if bytes.len() > 255 => Err(BadFileName::TooLong),
            bytes if bytes.contains(&b'/') => Err(BadFileName::Separator),
            _ => CString::new(name).map(FileName).map_err(|_| BadFileName::Separator),
        }
    }

    /// The name that code gets which is too long for the command line.
    pub(crate) fn of_long_code(lang: Lang) -> FileName {
        FileName(match lang {
            Lang::JavaScript => c"script.js".into(),
            Lang::Python => c"script.py".into(),
            Lang::Shell => c"script.sh".into(),
        })
    }

    /// The name as a program's argument, which no interpreter takes for a flag.
    #[must_use]
    pub fn as_argument(&self) -> CString {
        as_argument(&self.0)
    }

    /// The name as the kernel takes it.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        &self.0
    }
}

/// A path as a program's argument, which no interpreter takes for a flag.
fn as_argument(path: &CStr) -> CString {
    if !path.to_bytes().starts_with(b"-") {
        return path.to_owned();
    }
    CString::new([b"./", path.to_bytes()].concat()).unwrap_or_default() // it holds no NUL
}

/// The path of a file in the workspace, relative to it: no component is empty, `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkspacePath(CString);

impl WorkspacePath {
    /// Takes a path if each of its components is a file's name.
    ///
    /// # Errors
    ///
    /// [`BadFileName`] says which rule the first wrong component breaks.
    pub fn new(path: impl Into<Vec<u8>>) -> Result<Self, BadFileName> {
        let path = path.into();
        for name in path.split(|&byte| byte == b'/') {
            FileName::new(name)?;
        }
        CString::new(path).map(WorkspacePath).map_err(|_| BadFileName::Separator)
    }

    /// The path as a program's argument, which no interpreter takes for a flag.
    #[must_use]
    pub fn as_argument(&self) -> CString {
        as_argument(&self.0)
    }

    /// The path as the kernel takes it.
    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        &self.0
    }
}

/// An environment variable: a name that the environment can hold, and a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Variable {
    name: String,
    value: CString,
}

/// Why something can't be an environment variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadVariable {
    /// The name is empty or holds `=` or NUL.
    #[error("a variable's name can't be empty or hold `=` or a NUL byte")]
    Name,
    /// The value holds a NUL byte.
    #[error("a variable's value can't hold a NUL byte")]
    Value,
}

impl Variable {
    /// Takes a name and a value if the environment can hold them.
    ///
    /// # Errors
    ///
    /// [`BadVariable`] says which half can't be held.
    pub fn new(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Result<Self, BadVariable> {
        let name = name.into();
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(BadVariable::Name);
        }
        let value = CString::new(value).map_err(|_| BadVariable::Value)?;
        Ok(Variable { name, value })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &CStr {
        &self.value
    }

    /// `NAME=VALUE`, as `execve` takes it.
    #[must_use]
    pub fn to_c_string(&self) -> CString {
        let mut line = self.name.clone().into_bytes();
        line.push(b'=');
        line.extend_from_slice(self.value.to_bytes());
        CString::new(line).unwrap_or_default() // both halves were checked: there is no NUL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_leave_the_working_directory_is_refused() {
        for name in ["", ".", "..", "a/b", "/etc/passwd", "a\0b"] {
            assert!(FileName::new(name).is_err(), "{name:?}");
        }
        assert!(FileName::new("x".repeat(256)).is_err());
        assert!(FileName::new("-rf\n\u{1b}[2J.py").is_ok());
    }

    #[test]
    fn a_path_that_would_leave_the_workspace_is_refused() {
        for path in ["", "/", "/a", "a/", "a//b", "a/../b", "./a", "..", "a\0/b"] {
            assert!(WorkspacePath::new(path).is_err(), "{path:?}");
        }
        assert_eq!(WorkspacePath::new("-a/b.py").unwrap().as_argument().as_c_str(), c"./-a/b.py");
        assert_eq!(WorkspacePath::new("a/-b.py").unwrap().as_argument().as_c_str(), c"a/-b.py");
    }

    #[test]
    fn a_shebang_names_its_language() {
        assert_eq!(Lang::of_shebang(b"#!/usr/bin/env python3\nx"), Some(Lang::Python));
        assert_eq!(Lang::of_shebang(b"#!/usr/bin/python3.11 -u\n"), Some(Lang::Python));
        assert_eq!(Lang::of_shebang(b"#! /bin/sh -e\n"), Some(Lang::Shell));
        assert_eq!(Lang::of_shebang(b"#!/usr/bin/env -S node --x\n"), Some(Lang::JavaScript));
        assert_eq!(Lang::of_shebang(b"#!/usr/bin/perl\n"), None);
        assert_eq!(Lang::of_shebang(b"print(1)\n"), None);
        assert_eq!(Lang::of_shebang(b"#!"), None);
    }

    #[test]
    fn a_variable_that_the_environment_cannot_hold_is_refused() {
        assert_eq!(Variable::new("", "x"), Err(BadVariable::Name));
        assert_eq!(Variable::new("A=B", "x"), Err(BadVariable::Name));
        assert_eq!(Variable::new("A", "x\0y"), Err(BadVariable::Value));
        assert_eq!(Variable::new("A", "b=c").unwrap().to_c_string().to_bytes(), b"A=b=c");
    }
}
