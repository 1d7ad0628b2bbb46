//! Which program was meant: the four forms of `run`.
//!
//! A file of the workspace is run where it lies; any other is put in alone, by its own name.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cofferdam_core::files::{Files, Workspace};
use cofferdam_core::outcome::FaultCode;
use cofferdam_core::request::{
    Argv, File, FileName, Lang, Origin, Program, Request, Script, Variable, WorkspacePath,
};

use super::{Named, RunArgs, Unprepared};
use crate::console::window_size;
use crate::places::quoted;

/// The most that a script may be, in bytes. It is held in memory on its way inside.
const SCRIPT_BYTES: u64 = 64 << 20;

/// What tells a script's language: more than the kernel reads of a first line (BINPRM_BUF_SIZE in
/// `linux/binfmts.h` is 256).
const HEAD_BYTES: u64 = 4096;

/// `--lang`: a language by its name.
pub(crate) fn lang(text: &str) -> Result<Lang, String> {
    Lang::ALL.iter().copied().find(|lang| lang.name() == text).ok_or_else(|| {
        let known: Vec<_> = Lang::ALL.iter().map(|lang| lang.name()).collect();
        format!("it is one of {}", known.join(", "))
    })
}

/// The request that was typed, for a run that sees `files`.
pub(super) fn request(args: RunArgs, files: &Files) -> Result<Request, Unprepared> {
    let lang = args.lang.unwrap_or(Lang::Python);
    let (program, put) = match args.named {
        Some(Named::Code(code, words)) => (inline(code, lang, words)?, vec![]),
        Some(Named::File(file, words)) if file == "-" => (from_stdin(lang, words)?, vec![]),
        Some(Named::File(file, words)) => from_file(Path::new(&file), words, files)?,
        Some(Named::Command(words)) => (from_command(words)?, vec![]),
        None => (from_command(vec![])?, vec![]),
    };
    Ok(Request {
        program,
        files: put,
        environment: if args.tty { kind_of_terminal() } else { vec![] },
        labels: std::collections::BTreeMap::new(),
        terminal: args.tty.then(window_size),
        collect: args.out.is_some() || args.diff.is_some(),
    })
}

/// What kind of terminal ours is, which the one inside looks like. Nothing else of our environment
/// gets in unnamed.
fn kind_of_terminal() -> Vec<Variable> {
    let plain = |kind: &String| kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let kind = std::env::var("TERM").ok().filter(plain).unwrap_or_else(|| "xterm".to_owned());
    Variable::new("TERM", kind).into_iter().collect()
}

/// An argument: any bytes but NUL, which the operating system let nobody type.
fn word(text: OsString) -> Result<CString, Unprepared> {
    CString::new(text.into_vec())
        .map_err(|_| Unprepared::request(FaultCode::BadRequest, "an argument holds a NUL byte", "remove it"))
}

fn words(texts: Vec<OsString>) -> Result<Vec<CString>, Unprepared> {
    texts.into_iter().map(word).collect()
}

fn inline(code: OsString, lang: Lang, args: Vec<OsString>) -> Result<Program, Unprepared> {
    let source = code.into_vec();
    Ok(Program::Script(Script { lang, origin: Origin::Inline, source, args: words(args)? }))
}

fn from_stdin(lang: Lang, args: Vec<OsString>) -> Result<Program, Unprepared> {
    let mut source = vec![];
    io::stdin().lock().take(SCRIPT_BYTES + 1).read_to_end(&mut source).map_err(|error| {
        let message = format!("could not read the program from standard input: {error}");
        Unprepared::request(FaultCode::BadRequest, message, "pipe the code into the command")
    })?;
    if source.len() as u64 > SCRIPT_BYTES {
        return Err(too_long("the program on standard input"));
    }
    Ok(Program::Script(Script { lang, origin: Origin::Stdin, source, args: words(args)? }))
}

fn from_command(command: Vec<OsString>) -> Result<Program, Unprepared> {
    let mut words = words(command)?.into_iter();
    let program = words.next().ok_or_else(|| {
        Unprepared::request(
            FaultCode::BadRequest,
            "there is nothing to run",
            "name a script, or code with -c, or a command after --; see `cofferdam run --help`",
        )
    })?;
    if program.is_empty() {
        let fix = "name a program after --";
        return Err(Unprepared::request(FaultCode::NotFound, "the program's name is empty", fix));
    }
    Ok(Program::Command(Argv::new(program, words.collect())))
}

fn too_long(what: &str) -> Unprepared {
    let message = format!("{what} is longer than {} MiB", SCRIPT_BYTES >> 20);
    Unprepared::request(FaultCode::BadRequest, message, "keep data out of the program")
}

/// A script by its extension or its first line, or anything else that can be executed. Without a
/// workspace, the file alone gets in.
fn from_file(path: &Path, args: Vec<OsString>, files: &Files) -> Result<(Program, Vec<File>), Unprepared> {
    look(path, files)?;
    let args = words(args)?;
    if let Some(workspace) = &files.workspace {
        if let Some(inside) = in_workspace(path, workspace, files)? {
            let lang = lang_of(path, &read(path, HEAD_BYTES)?)?;
            return Ok((where_it_lies(path, inside, lang, args)?, vec![]));
        }
        refuse_taken(path, workspace)?;
    }
    let source = read(path, SCRIPT_BYTES + 1)?;
    if source.len() as u64 > SCRIPT_BYTES {
        return Err(too_long(&quoted(path)));
    }
    let lang = lang_of(path, &source)?;
    let name = name_inside(path)?;
    match lang {
        Some(lang) => {
            let origin = Origin::File(name);
            Ok((Program::Script(Script { lang, origin, source, args }), vec![]))
        }
        None => {
            let program = Program::Command(Argv::new(executed(name.as_c_str()), args));
            Ok((program, vec![File { name, bytes: source, executable: true }]))
        }
    }
}

/// The language of a script; none for what is executed by its first line, or as machine code.
fn lang_of(path: &Path, source: &[u8]) -> Result<Option<Lang>, Unprepared> {
    // The first line wins: a `.sh` that asks for bash gets bash.
    if source.starts_with(b"#!") {
        return Ok(Lang::of_shebang(source));
    }
    let lang = Lang::of_extension(path.extension().and_then(OsStr::to_str).unwrap_or_default());
    if lang.is_some() || source.starts_with(b"\x7fELF") || source.starts_with(WASM) {
        return Ok(lang);
    }
    if path.extension() == Some(OsStr::new("wasm")) {
        return Err(Unprepared::request(
            FaultCode::NotExecutable,
            format!("{} is no WebAssembly, which begins with a NUL byte and `asm`", quoted(path)),
            "name a module or a component: text (.wat) has to be made into one first; a script has an extension of \
             its own",
        ));
    }
    Err(Unprepared::request(
        FaultCode::NotExecutable,
        format!("can't tell what language {} is in", quoted(path)),
        "give it an extension (.py, .sh, .js) or a first line like #!/usr/bin/perl; or pass it to \
         its interpreter: `cofferdam run … -- perl - < FILE`",
    ))
}

/// How every file of WebAssembly begins.
const WASM: &[u8] = b"\0asm";

/// A file of the working directory as a program's name, which isn't looked up in `PATH`.
fn executed(path: &CStr) -> CString {
    CString::new([b"./", path.to_bytes()].concat()).unwrap_or_default() // it holds no NUL
}

/// The path of a file relative to the workspace, if it is in there and shown.
fn in_workspace(
    path: &Path,
    workspace: &Workspace,
    files: &Files,
) -> Result<Option<WorkspacePath>, Unprepared> {
    let lost = |error: io::Error| unreadable(path, &error);
    let real = path.canonicalize().map_err(lost)?;
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let named = folder.canonicalize().map_err(lost)?.join(path.file_name().unwrap_or_default());
    let below = |path: &Path| path.strip_prefix(&workspace.host).map(Path::to_owned).ok();
    let inside = match (below(&named), below(&real)) {
        (Some(_), None) => {
            let message = format!("{} is a link that leads out of the workspace", quoted(path));
            let fix = format!("run {} itself, or put a copy into the workspace", quoted(&real));
            return Err(Unprepared::request(FaultCode::BadRequest, message, fix));
        }
        (None, None) => return Ok(None),
        (Some(named), Some(real)) => [named, real],
        (None, Some(real)) => [real.clone(), real],
    };
    for path in &inside {
        refuse_hidden(path, files)?;
    }
    let [inside, _] = inside;
    let inside = WorkspacePath::new(inside.into_os_string().into_vec()).map_err(|error| {
        let message = format!("{} can't be run in the workspace: {error}", quoted(path));
        Unprepared::request(FaultCode::BadRequest, message, "name a file")
    })?;
    Ok(Some(inside))
}

fn refuse_hidden(inside: &Path, files: &Files) -> Result<(), Unprepared> {
    let covering = files.hidden().into_iter().find(|one| one.covers(inside.as_os_str().as_bytes()));
    let Some(pattern) = covering else { return Ok(()) };
    let message =
        format!("{} of the workspace is hidden by the pattern {:?}", quoted(inside), pattern.as_str());
    let fix = "rename it, or take the pattern out of `hide` if it is yours";
    Err(Unprepared::request(FaultCode::PolicyDenied, message, fix))
}

/// A script's interpreter gets its path; anything else is executed, and so has to be executable.
fn where_it_lies(
    path: &Path,
    inside: WorkspacePath,
    lang: Option<Lang>,
    args: Vec<CString>,
) -> Result<Program, Unprepared> {
    if let Some(lang) = lang {
        let origin = Origin::Workspace(inside);
        return Ok(Program::Script(Script { lang, origin, source: vec![], args }));
    }
    let mode = fs::metadata(path).map_or(0, |found| found.permissions().mode());
    let is_wasm = inside.as_c_str().to_bytes().ends_with(b".wasm"); // the kernel doesn't execute it
    if mode & 0o111 == 0 && !is_wasm {
        let message = format!("{} is not executable", quoted(path));
        let fix = "make it so with chmod +x, or pass it to its interpreter after --";
        return Err(Unprepared::request(FaultCode::NotExecutable, message, fix));
    }
    Ok(Program::Command(Argv::new(executed(inside.as_c_str()), args)))
}

/// A file from elsewhere must not take the place of one in the workspace.
fn refuse_taken(path: &Path, workspace: &Workspace) -> Result<(), Unprepared> {
    let name = path.file_name().unwrap_or_default();
    if fs::symlink_metadata(workspace.host.join(name)).is_err() {
        return Ok(());
    }
    let message = format!(
        "{} is not in the workspace, and {} is there already",
        quoted(path),
        quoted(&workspace.host.join(name))
    );
    let fix = "name the one in the workspace, or rename this one or put it there";
    Err(Unprepared::request(FaultCode::BadRequest, message, fix))
}

/// The file's own name, which is what it has in the working directory.
fn name_inside(path: &Path) -> Result<FileName, Unprepared> {
    let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    FileName::new(name).map_err(|error| {
        let message = format!("{} can't be put into a sandbox: {error}", quoted(path));
        Unprepared::request(FaultCode::BadRequest, message, "name a file")
    })
}

/// Says what is wrong with a name before anything is made of it.
fn look(path: &Path, files: &Files) -> Result<(), Unprepared> {
    let found = fs::metadata(path).map_err(|error| {
        let in_workspace = files.workspace.as_ref().map(|workspace| workspace.host.join(path));
        if error.kind() != io::ErrorKind::NotFound {
            return unreadable(path, &error);
        }
        let fix = if in_workspace.is_some_and(|path| path.is_file()) {
            "it is in the workspace: name it relative to your own working directory"
        } else {
            "check the name; a command of the sandbox goes after --, as in `run -- ls`"
        };
        Unprepared::request(FaultCode::NotFound, format!("could not read {}: {error}", quoted(path)), fix)
    })?;
    if !found.is_file() {
        let message = format!("{} is not a regular file", quoted(path));
        return Err(Unprepared::request(FaultCode::NotExecutable, message, "name a script"));
    }
    Ok(())
}

/// The first bytes of a file, so many at most.
fn read(path: &Path, most: u64) -> Result<Vec<u8>, Unprepared> {
    let mut bytes = vec![];
    let file = fs::File::open(path).map_err(|error| unreadable(path, &error))?;
    file.take(most).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    Ok(bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> Unprepared {
    let message = format!("could not read {}: {error}", quoted(path));
    Unprepared::request(FaultCode::NotExecutable, message, "make it readable for you")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A workspace `w` with files of each kind, and some beside it.
    fn folder() -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        fs::create_dir_all(folder.path().join("w/tools")).unwrap();
        write("w/tools/a.py", "print(1)");
        write("w/tools/perl", "#!/usr/bin/perl\n");
        write("w/.env.py", "");
        write("a.py", "print(2)");
        write("tools", "#!/bin/sh\n");
        write("other.py", "print(3)");
        symlink("../other.py", folder.path().join("w/out.py")).unwrap();
        symlink("tools/a.py", folder.path().join("w/link.py")).unwrap();
        symlink("w/tools/a.py", folder.path().join("in.py")).unwrap();
        let host = folder.path().join("w").canonicalize().unwrap();
        let files = Files { workspace: Some(Workspace { host, copy: false }), ..Files::default() };
        (folder, files)
    }

    fn program(folder: &tempfile::TempDir, files: &Files, name: &str) -> Result<Program, Unprepared> {
        from_file(&folder.path().join(name), vec![], files).map(|(program, _)| program)
    }

    /// Where a script lies, or the words of a command.
    fn place(program: Program) -> String {
        match program {
            Program::Script(Script { origin: Origin::Workspace(path), source, .. }) => {
                assert!(source.is_empty(), "it isn't put");
                path.as_c_str().to_string_lossy().into_owned()
            }
            Program::Script(Script { origin: Origin::File(name), source, .. }) => {
                format!("alone: {:?} {}", name.as_c_str(), source.len())
            }
            Program::Script(other) => format!("{other:?}"),
            Program::Command(argv) => argv.program().to_string_lossy().into_owned(),
        }
    }

    #[test]
    fn a_file_of_the_workspace_is_run_where_it_lies() {
        let (folder, files) = folder();
        for (name, inside) in [
            ("w/tools/a.py", "tools/a.py"),
            ("w/tools/../tools/a.py", "tools/a.py"),
            ("w/link.py", "link.py"),
            ("in.py", "tools/a.py"),
            ("other.py", "alone: \"other.py\" 8"),
            ("a.py", "alone: \"a.py\" 8"),
        ] {
            assert_eq!(place(program(&folder, &files, name).unwrap()), inside, "{name}");
        }
        let alone = program(&folder, &Files::default(), "w/tools/a.py").unwrap();
        assert_eq!(place(alone), "alone: \"a.py\" 8", "without a workspace nothing changes");
    }

    #[test]
    fn a_program_of_the_workspace_is_executed_by_its_path_if_it_may_be() {
        let (folder, files) = folder();
        let fault = program(&folder, &files, "w/tools/perl").unwrap_err().into_fault();
        assert_eq!(fault.code, FaultCode::NotExecutable);
        assert!(fault.fix.unwrap().contains("chmod +x"));
        let path = folder.path().join("w/tools/perl");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(place(program(&folder, &files, "w/tools/perl").unwrap()), "./tools/perl");
    }

    #[test]
    fn what_is_not_shown_or_in_the_way_is_refused_with_its_reason() {
        let (folder, mut files) = folder();
        for (name, why) in [
            ("w/.env.py", "hidden by the pattern \"**/.env*\""),
            ("w/out.py", "leads out of the workspace"),
            ("tools", "is there already"),
            ("tools/a.py", "could not read"),
        ] {
            let fault = program(&folder, &files, name).unwrap_err().into_fault();
            assert!(fault.message.contains(why) && fault.fix.is_some(), "{name}: {fault:?}");
        }
        files.hide = vec![cofferdam_core::files::Pattern::new("tools").unwrap()];
        for name in ["w/tools/a.py", "w/link.py"] {
            let fault = program(&folder, &files, name).unwrap_err().into_fault();
            assert!(fault.message.contains("hidden by the pattern \"tools\""), "{name}: {fault:?}");
        }
    }

    #[test]
    fn a_file_that_only_has_the_name_of_webassembly_is_said_to_be_none() {
        let (folder, files) = folder();
        for (name, text) in [("text.wasm", "(module)"), ("empty.wasm", "")] {
            fs::write(folder.path().join(name), text).unwrap();
            let fault = program(&folder, &files, name).unwrap_err().into_fault();
            assert_eq!((fault.code, fault.code.blame().name()), (FaultCode::NotExecutable, "request"));
            assert!(fault.message.contains("is no WebAssembly"), "{}", fault.message);
        }
        fs::write(folder.path().join("m.wasm"), WASM).unwrap();
        assert_eq!(place(program(&folder, &files, "m.wasm").unwrap()), "./m.wasm");
    }

    #[test]
    fn a_name_that_only_the_workspace_has_is_said_to_be_there() {
        let (_folder, files) = folder();
        let fault = from_file(Path::new("tools/a.py"), vec![], &files).unwrap_err().into_fault();
        assert!(fault.fix.unwrap().contains("relative to your own working directory"));
    }
}
