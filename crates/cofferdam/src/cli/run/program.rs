//! Which program was meant: the four forms of `run`.

use std::ffi::{CString, OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use cofferdam_core::outcome::FaultCode;
use cofferdam_core::request::{Argv, File, FileName, Lang, Origin, Program, Request, Script, WindowSize};

use super::{Named, RunArgs, Unprepared};

/// The most that a script may be, in bytes. It is held in memory on its way inside.
const SCRIPT_BYTES: u64 = 64 << 20;

/// `--lang`: a language by its name.
pub(crate) fn lang(text: &str) -> Result<Lang, String> {
    Lang::ALL.iter().copied().find(|lang| lang.name() == text).ok_or_else(|| {
        let known: Vec<_> = Lang::ALL.iter().map(|lang| lang.name()).collect();
        format!("it is one of {}", known.join(", "))
    })
}

/// The request that was typed.
pub(super) fn request(args: RunArgs) -> Result<Request, Unprepared> {
    let lang = args.lang.unwrap_or(Lang::Python);
    let (program, files) = match args.named {
        Some(Named::Code(code, words)) => (inline(code, lang, words)?, vec![]),
        Some(Named::File(file, words)) if file == "-" => (from_stdin(lang, words)?, vec![]),
        Some(Named::File(file, words)) => from_file(Path::new(&file), words)?,
        Some(Named::Command(words)) => (from_command(words)?, vec![]),
        None => (from_command(vec![])?, vec![]),
    };
    Ok(Request {
        program,
        files,
        environment: vec![],
        labels: std::collections::BTreeMap::new(),
        // The size is told when the program runs on a terminal of ours.
        terminal: args.tty.then_some(WindowSize { columns: 80, rows: 24 }),
        collect: false,
    })
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

/// A script by its extension or its first line, or anything else that can be executed. The file
/// alone gets in.
fn from_file(path: &Path, args: Vec<OsString>) -> Result<(Program, Vec<File>), Unprepared> {
    let source = read(path)?;
    let name = name_inside(path)?;
    // The first line wins: a `.sh` that asks for bash gets bash.
    let lang = if source.starts_with(b"#!") {
        Lang::of_shebang(&source)
    } else {
        Lang::of_extension(path.extension().and_then(OsStr::to_str).unwrap_or_default())
    };
    if let Some(lang) = lang {
        let origin = Origin::File(name);
        return Ok((Program::Script(Script { lang, origin, source, args: words(args)? }), vec![]));
    }
    if !source.starts_with(b"#!") && !source.starts_with(b"\x7fELF") {
        return Err(Unprepared::request(
            FaultCode::NotExecutable,
            format!("can't tell what language {} is in", shown(path)),
            "give it an extension (.py, .sh, .js) or a first line like #!/usr/bin/perl; or pass it to \
             its interpreter: `cofferdam run … -- perl - < FILE`",
        ));
    }
    let program = [b"./", name.as_c_str().to_bytes()].concat();
    let program = Program::Command(Argv::new(word(OsString::from_vec(program))?, words(args)?));
    Ok((program, vec![File { name, bytes: source, executable: true }]))
}

/// The file's own name, which is what it has in the working directory.
fn name_inside(path: &Path) -> Result<FileName, Unprepared> {
    let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    FileName::new(name).map_err(|error| {
        let message = format!("{} can't be put into a sandbox: {error}", shown(path));
        Unprepared::request(FaultCode::BadRequest, message, "name a file")
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Unprepared> {
    let failed = |error: io::Error| {
        let (code, fix) = match error.kind() {
            io::ErrorKind::NotFound => (
                FaultCode::NotFound,
                "check the name; a command of the sandbox goes after --, as in `run -- ls`",
            ),
            _ => (FaultCode::NotExecutable, "make it readable for you"),
        };
        Unprepared::request(code, format!("could not read {}: {error}", shown(path)), fix)
    };
    let found = fs::metadata(path).map_err(failed)?;
    if !found.is_file() {
        let message = format!("{} is not a regular file", shown(path));
        return Err(Unprepared::request(FaultCode::NotExecutable, message, "name a script"));
    }
    if found.len() > SCRIPT_BYTES {
        return Err(too_long(&shown(path)));
    }
    fs::read(path).map_err(failed)
}

/// A path for a message: quoted, so that no byte of it drives a terminal.
fn shown(path: &Path) -> String {
    format!("{:?}", path.as_os_str())
}
