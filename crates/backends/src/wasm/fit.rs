//! A static look at a program: whether WebAssembly can run it, and what it needs that isn't there.
//!
//! Python source is read for its imports and for what no WebAssembly does: processes, threads, sockets,
//! signals, machine code. Nothing of it is run. It is a look and no proof: what is imported by a name that
//! is made up while the program runs isn't seen, and fails there.

mod tokens;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use tokens::{Placed, Token, tokens};

/// What a program needs that isn't there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Misfit {
    /// In a clause with the program as its subject: "imports `x` (line 3), which …".
    pub(super) needs: String,
    /// Who has it.
    pub(super) way_out: WayOut,
}

/// Who has what a program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WayOut {
    /// Another boundary.
    Elsewhere,
    /// A Python with this package in it, or the folder that it is in.
    Module(String),
    /// A boundary with a loopback, and sockets of its own.
    Loopback,
    /// A boundary with a terminal.
    Terminal,
}

/// Names whose import alone says that a program won't run, and why.
const MODULES: [(&str, &str); 12] = [
    ("_posixsubprocess", PROCESSES),
    ("ctypes", "calls machine code"),
    ("fcntl", "asks the kernel for what WebAssembly doesn't have"),
    ("http.server", SERVES),
    ("multiprocessing", PROCESSES),
    ("pexpect", PROCESSES),
    ("pty", PROCESSES),
    ("resource", "asks the kernel for what WebAssembly doesn't have"),
    ("socketserver", SERVES),
    ("termios", TERMINAL),
    ("tty", TERMINAL),
    ("xmlrpc.server", SERVES),
];

const PROCESSES: &str = "starts processes";
const THREADS: &str = "starts threads";
const SERVES: &str = "serves connections";
const CONNECTS: &str = "opens sockets in a way that it can't here";
const TERMINAL: &str = "drives a terminal";
const USERS: &str = "asks who it runs as";
const SIGNALS: &str = "waits for signals";

/// Names in modules that say the same; those modules are fine without them. One that ends in `*` stands for
/// all that begin with it.
const MEMBERS: [(&str, &str, &str); 42] = [
    ("_thread", "start_new_thread", THREADS),
    ("_thread", "start_joinable_thread", THREADS),
    ("asyncio", "create_subprocess_*", PROCESSES),
    ("asyncio", "open_connection", CONNECTS),
    ("asyncio", "open_unix_connection", CONNECTS),
    ("asyncio", "start_server", SERVES),
    ("asyncio", "start_unix_server", SERVES),
    ("asyncio", "to_thread", THREADS),
    ("concurrent.futures", "InterpreterPoolExecutor", THREADS),
    ("concurrent.futures", "ProcessPoolExecutor", PROCESSES),
    ("concurrent.futures", "ThreadPoolExecutor", THREADS),
    ("os", "chown", USERS),
    ("os", "exec*", PROCESSES),
    ("os", "fork*", PROCESSES),
    ("os", "getegid", USERS),
    ("os", "geteuid", USERS),
    ("os", "getgid", USERS),
    ("os", "getuid", USERS),
    ("os", "kill*", PROCESSES),
    ("os", "pipe", PROCESSES),
    ("os", "popen", PROCESSES),
    ("os", "posix_spawn*", PROCESSES),
    ("os", "spawn*", PROCESSES),
    ("os", "startfile", PROCESSES),
    ("os", "system", PROCESSES),
    ("os", "wait*", PROCESSES),
    ("signal", "alarm", SIGNALS),
    ("signal", "pause", SIGNALS),
    ("signal", "setitimer", SIGNALS),
    ("signal", "sigwait*", SIGNALS),
    ("socket", "create_server", SERVES),
    ("socket", "fromfd", CONNECTS),
    ("socket", "socketpair", CONNECTS),
    ("subprocess", "Popen", PROCESSES),
    ("subprocess", "call", PROCESSES),
    ("subprocess", "check_call", PROCESSES),
    ("subprocess", "check_output", PROCESSES),
    ("subprocess", "getoutput", PROCESSES),
    ("subprocess", "getstatusoutput", PROCESSES),
    ("subprocess", "run", PROCESSES),
    ("threading", "Thread", THREADS),
    ("threading", "Timer", THREADS),
];

/// Modules that every Python has.
const ALWAYS: [&str; 4] = ["__future__", "__main__", "builtins", "sys"];

/// What a look at a script found.
#[derive(Debug, Default, PartialEq, Eq)]
struct Found {
    /// The modules that it needs, with the line of the first import of each.
    imports: BTreeMap<String, usize>,
    /// What it does that can't be done, with the line.
    deeds: Vec<(String, &'static str, usize)>,
    /// Whether it changes where modules are looked for.
    changes_path: bool,
}

impl Found {
    /// The first thing that it does and that can't be done.
    fn deed(&self) -> Option<Misfit> {
        let (name, deed, line) = self.deeds.first()?;
        let way_out = match *deed {
            CONNECTS | SERVES => WayOut::Loopback,
            TERMINAL => WayOut::Terminal,
            _ => WayOut::Elsewhere,
        };
        Some(Misfit { needs: format!("{deed} (`{name}`, line {line})"), way_out })
    }
}

/// Whether a template of Python runs a script: `importable` are the modules that it has, `beside` says of a
/// name whether a module of it lies beside the script.
///
/// # Errors
///
/// [`Misfit`] is the first thing in the script that isn't there.
pub(super) fn python(
    source: &[u8],
    importable: &BTreeSet<String>,
    beside: &dyn Fn(&str) -> bool,
) -> Result<(), Misfit> {
    let found = look(&beginning(source));
    if let Some(misfit) = found.deed() {
        return Err(misfit);
    }
    let missing = found.imports.iter().filter(|(module, _)| {
        let top = module.split('.').next().unwrap_or_default();
        !ALWAYS.contains(&top)
            && !importable.contains(top)
            && !importable.contains(module.as_str())
            && !beside(top)
    });
    // Where it says itself where modules are, nobody else can know what is there.
    match missing.min_by_key(|(_, line)| **line).filter(|_| !found.changes_path) {
        Some((module, line)) => Err(Misfit {
            needs: format!("imports `{module}` (line {line}), which the prepared Python doesn't have"),
            way_out: WayOut::Module(module.split('.').next().unwrap_or_default().to_owned()),
        }),
        None => Ok(()),
    }
}

/// What a script does that no WebAssembly does, if it does such a thing.
pub(super) fn deed(source: &[u8]) -> Option<String> {
    look(&beginning(source)).deed().map(|misfit| misfit.needs)
}

/// The modules that a script imports, by the names that it imports them by.
pub(super) fn imports(source: &[u8]) -> BTreeSet<String> {
    look(&beginning(source)).imports.into_keys().collect()
}

/// The most of a script that is looked at, in bytes: the look is the host's own time and memory, and what a script
/// imports stands at its beginning.
pub(super) const LOOK_BYTES: usize = 256 << 10;

/// The longest name with dots that is taken for one of a module, in bytes: each part of a longer one would be compared
/// with the whole before it.
const NAME_BYTES: usize = 256;

/// What is looked at of a script.
fn beginning(source: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(&source[..source.len().min(LOOK_BYTES)])
}

/// Reads a script.
fn look(source: &str) -> Found {
    let tokens = tokens(source);
    let mut look =
        Look { tokens: &tokens, at: 0, tries: vec![], aliases: BTreeMap::new(), found: Found::default() };
    look.all();
    look.found
}

struct Look<'a> {
    tokens: &'a [Placed],
    at: usize,
    /// The indentation of blocks that are left out of account, each deeper than the one before: what is tried, and
    /// what only a type checker reads.
    tries: Vec<usize>,
    /// Names and the modules that they stand for.
    aliases: BTreeMap<String, String>,
    found: Found,
}

impl Look<'_> {
    fn all(&mut self) {
        let mut begins = true;
        while self.at < self.tokens.len() {
            begins = self.token(begins);
        }
    }

    fn placed(&self) -> Option<&Placed> {
        self.tokens.get(self.at)
    }

    fn name(&self, ahead: usize) -> Option<&str> {
        match &self.tokens.get(self.at + ahead)?.token {
            Token::Name(name) => Some(name),
            _ => None,
        }
    }

    fn is_sign(&self, ahead: usize, sign: char) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|placed| placed.token == Token::Sign(sign))
    }

    /// Whether what stands here may be missing.
    fn is_tried(&self) -> bool {
        !self.tries.is_empty()
    }

    /// Takes a token, or a statement that begins here. Says whether a statement begins after it.
    fn token(&mut self, begins: bool) -> bool {
        let Some(placed) = self.placed().cloned() else { return false };
        let first = self.at == 0 || self.tokens[self.at - 1].token == Token::End;
        if first && placed.token != Token::End {
            while self.tries.pop_if(|indent| *indent >= placed.indent).is_some() {}
        }
        match &placed.token {
            Token::End => {
                self.at += 1;
                true
            }
            Token::Sign(sign) => {
                self.at += 1;
                matches!(sign, ';' | ':') // a colon elsewhere is followed by no keyword of those that count
            }
            Token::Text(_) => {
                self.at += 1;
                false
            }
            Token::Name(name) => {
                self.named(begins, name, &placed);
                false
            }
        }
    }

    fn named(&mut self, begins: bool, name: &str, placed: &Placed) {
        match name {
            "import" if begins => self.import(placed.line),
            "from" if begins => self.from(placed.line),
            "try" if begins => {
                self.at += 1;
                self.tries(placed.indent);
            }
            "if" if begins && self.is_for_type_checkers() => {
                self.at += 1;
                self.tries(placed.indent);
            }
            _ if self.at > 0 && self.tokens[self.at - 1].token == Token::Sign('.') => self.at += 1,
            _ => self.chain(placed.line),
        }
    }

    /// Notes that a block of this indentation is left out of account.
    fn tries(&mut self, indent: usize) {
        if self.tries.last().is_none_or(|last| *last < indent) {
            self.tries.push(indent);
        }
    }

    fn is_for_type_checkers(&self) -> bool {
        self.name(1) == Some("TYPE_CHECKING")
            || (self.is_sign(2, '.') && self.name(3) == Some("TYPE_CHECKING"))
    }

    /// `a.b.c`; the first name is here.
    fn dotted(&mut self) -> Option<String> {
        let mut path = self.name(0)?.to_owned();
        self.at += 1;
        while self.is_sign(0, '.') && self.name(1).is_some() {
            if path.len() < NAME_BYTES {
                path.push('.');
                path.push_str(self.name(1).unwrap_or_default());
            }
            self.at += 2;
        }
        Some(path)
    }

    /// `import a.b as c, d`
    fn import(&mut self, line: usize) {
        self.at += 1;
        while let Some(module) = self.dotted() {
            if self.name(0) == Some("as") {
                if let Some(alias) = self.name(1) {
                    self.aliases.insert(alias.to_owned(), module.clone());
                }
                self.at += 2;
            } else {
                let top = module.split('.').next().unwrap_or_default().to_owned();
                self.aliases.insert(top.clone(), top);
            }
            self.needs(&module, line);
            if !self.is_sign(0, ',') {
                break;
            }
            self.at += 1;
        }
    }

    /// `from a.b import c as d, e`, and the relative ones, which only a package can have.
    fn from(&mut self, line: usize) {
        self.at += 1;
        if self.is_sign(0, '.') {
            self.at += 1;
            return;
        }
        let Some(module) = self.dotted() else { return };
        if self.name(0) != Some("import") {
            return;
        }
        self.at += 1;
        self.needs(&module, line);
        if self.is_sign(0, '(') {
            self.at += 1;
        }
        while let Some(member) = self.name(0).map(str::to_owned) {
            self.at += 1;
            self.member(&module, &member, line);
            let whole = format!("{module}.{member}");
            self.judge_module(&whole, line);
            let alias = if self.name(0) == Some("as") {
                self.at += 2;
                match &self.tokens.get(self.at - 1).map(|placed| &placed.token) {
                    Some(Token::Name(alias)) => alias.clone(),
                    _ => member,
                }
            } else {
                member
            };
            self.aliases.insert(alias, whole);
            if !self.is_sign(0, ',') {
                break;
            }
            self.at += 1;
        }
    }

    /// `__import__("a")`, `importlib.import_module("a.b")`: what follows the function's name.
    fn by_function(&mut self, line: usize) {
        if !self.is_sign(0, '(') || !(self.is_sign(2, ')') || self.is_sign(2, ',')) {
            return;
        }
        let Some(Token::Text(Some(module))) = self.tokens.get(self.at + 1).map(|placed| &placed.token) else {
            return;
        };
        let module = module.clone();
        let whole = module.split('.').all(|part| !part.is_empty());
        if whole && module.chars().all(|c| c.is_alphanumeric() || "._".contains(c)) {
            self.needs(&module, line);
        }
    }

    /// `a.b.c`, where `a` may stand for a module.
    fn chain(&mut self, line: usize) {
        let Some(path) = self.dotted() else { return };
        if path == "__import__" || path.rsplit('.').next() == Some("import_module") {
            return self.by_function(line);
        }
        let (first, rest) = path.split_once('.').unwrap_or((&path, ""));
        let Some(module) = self.aliases.get(first).cloned() else { return };
        if module == "sys" && rest.split('.').next() == Some("path") {
            let changed = ['=', '+', '['].iter().any(|sign| self.is_sign(0, *sign));
            self.found.changes_path |= changed || rest.contains('.');
        }
        // `concurrent.futures.ThreadPoolExecutor` may be split anywhere.
        let mut whole = module;
        for part in rest.split('.').filter(|part| !part.is_empty()) {
            self.member(&whole, part, line);
            whole = format!("{whole}.{part}");
        }
    }

    /// Notes that a module is needed.
    fn needs(&mut self, module: &str, line: usize) {
        if self.is_tried() {
            return;
        }
        self.found.imports.entry(module.to_owned()).or_insert(line);
        self.judge_module(module, line);
    }

    /// Notes what importing a module says about a program.
    fn judge_module(&mut self, module: &str, line: usize) {
        let below = |known: &str| {
            module.strip_prefix(known).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let known = MODULES.iter().copied().find(|(known, _)| below(known));
        if let Some((known, deed)) = known.filter(|_| !self.is_tried()) {
            self.found.deeds.push((known.to_owned(), deed, line));
        }
    }

    /// Notes what using something of a module says about a program.
    fn member(&mut self, module: &str, member: &str, line: usize) {
        let is = |known: &str| match known.strip_suffix('*') {
            Some(beginning) => member.starts_with(beginning),
            None => member == known,
        };
        let known = MEMBERS.iter().copied().find(|(of, name, _)| *of == module && is(name));
        if let Some((_, _, deed)) = known.filter(|_| !self.is_tried()) {
            self.found.deeds.push((format!("{module}.{member}"), deed, line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(source: &str) -> String {
        look(source).imports.into_keys().collect::<Vec<_>>().join(" ")
    }

    fn deed(source: &str) -> Option<&'static str> {
        look(source).deeds.first().map(|(_, deed, _)| *deed)
    }

    fn fits(source: &str) -> Result<(), Misfit> {
        let importable = ["json", "math", "numpy", "os", "sys", "threading", "time", "socket", "asyncio"];
        let importable =
            importable.iter().chain(&["concurrent", "signal", "importlib", "typing", "subprocess"]);
        let importable = importable.map(|name| (*name).to_owned()).collect();
        python(source.as_bytes(), &importable, &|name| name == "helper")
    }

    #[test]
    fn every_form_of_an_import_is_seen() {
        for (source, expected) in [
            ("import a", "a"),
            ("import a.b as c, d", "a.b d"),
            ("import a, b.c,d", "a b.c d"),
            ("from x import y", "x"),
            ("from x.y import (z,\n  w as v,\n)", "x.y"),
            ("from x import *", "x"),
            ("from . import y", ""),
            ("from .x import y", ""),
            ("from ..x.y import z", ""),
            ("from ... import z", ""),
            ("from __future__ import annotations", "__future__"),
            ("if True: import a", "a"),
            ("a = 1; import b; import c", "b c"),
            ("def f():\n    import a\n    return a", "a"),
            ("class A:\n  from b import c", "b"),
            ("import \\\n  a", "a"),
            ("m = __import__('a')", "a"),
            ("m = __import__(name)", ""),
            ("m = __import__('a' + b)", ""),
            ("import importlib\nm = importlib.import_module(\"a.b\")", "a.b importlib"),
            ("from importlib import import_module as i, import_module\nimport_module('c')", "c importlib"),
            ("importlib.import_module('.b', package='a')", ""),
            ("match x:\n  case 1:\n    import a", "a"),
            ("async def f():\n    async with a: import b", "b"),
            ("lambda: __import__('a')", "a"),
            ("import a # import b", "a"),
        ] {
            assert_eq!(imports(source), expected, "{source}");
        }
    }

    #[test]
    fn what_only_looks_like_an_import_is_none() {
        for source in [
            "'import a'",
            "\"\"\"\nimport a\nfrom b import c\n\"\"\"",
            "# import a",
            "x = '''\nimport a\n'''",
            "raise A from b",
            "def g(): yield from a",
            "imports = 1",
            "x.import_ = 2",
            "print('from a import b')",
            "f\"\"\"\nimport a\n\"\"\"",
            "x = {'import': 1}",
        ] {
            assert_eq!(imports(source), "", "{source}");
        }
    }

    #[test]
    fn what_may_be_missing_is_not_needed() {
        for source in [
            "try:\n    import a\nexcept ImportError:\n    a = None",
            "try: import a\nexcept ImportError: pass",
            "try:\n    if x:\n        import a\nfinally:\n    pass",
            "if TYPE_CHECKING:\n    import a",
            "if typing.TYPE_CHECKING:\n    from a import b",
            "try:\n    __import__('a')\nexcept Exception: pass",
        ] {
            assert_eq!(imports(source), "", "{source}");
        }
        assert_eq!(imports("try:\n    import a\nexcept ImportError:\n    import b"), "b");
        assert_eq!(imports("try:\n    x\nfinally:\n    y\nimport b"), "b");
        assert_eq!(imports("def f():\n    try:\n        import a\n    except E: pass\n    import b"), "b");
        assert_eq!(imports("if not TYPE:\n    import a"), "a");
    }

    #[test]
    fn what_webassembly_cannot_do_has_its_words() {
        for (source, expected) in [
            ("import subprocess\nsubprocess.run(['ls'])", PROCESSES),
            ("import subprocess as sp\nsp.Popen('ls')", PROCESSES),
            ("from subprocess import run", PROCESSES),
            ("import os\nos.system('ls')", PROCESSES),
            ("import os as o\no.fork()", PROCESSES),
            ("from os import system", PROCESSES),
            ("from os import path, popen as p", PROCESSES),
            ("import os\nos.execvp('a', [])", PROCESSES),
            ("import os\nos.posix_spawn('a', [], {})", PROCESSES),
            ("import multiprocessing as mp", PROCESSES),
            ("from multiprocessing.pool import Pool", PROCESSES),
            ("from concurrent.futures import ProcessPoolExecutor", PROCESSES),
            ("import concurrent.futures\nconcurrent.futures.ThreadPoolExecutor()", THREADS),
            ("from concurrent import futures\nfutures.ThreadPoolExecutor(2)", THREADS),
            ("import threading\nt = threading.Thread(target=f)", THREADS),
            ("from threading import Thread", THREADS),
            ("import _thread\n_thread.start_new_thread(f, ())", THREADS),
            ("import asyncio\nasyncio.to_thread(f)", THREADS),
            ("import asyncio\nawait asyncio.create_subprocess_exec('ls')", PROCESSES),
            ("import asyncio\nasyncio.start_server(f)", SERVES),
            ("import socket\na, b = socket.socketpair()", CONNECTS),
            ("from socket import fromfd", CONNECTS),
            ("import socketserver", SERVES),
            ("from http.server import HTTPServer", SERVES),
            ("import http.server", SERVES),
            ("from http import server", SERVES),
            ("import ctypes.util", "calls machine code"),
            ("import signal\nsignal.alarm(1)", SIGNALS),
            ("m = __import__('multiprocessing')", PROCESSES),
        ] {
            assert_eq!(deed(source), Some(expected), "{source}");
        }
    }

    #[test]
    fn a_look_keeps_no_more_than_it_needs() {
        // Each took minutes where every block or every part was compared with all before it.
        let tokens = tokens(&"try:".repeat(1000));
        let mut look =
            Look { tokens: &tokens, at: 0, tries: vec![], aliases: BTreeMap::new(), found: Found::default() };
        look.all();
        assert_eq!(look.tries, [0], "one block for all that begin in the same place");
        let long = format!("import a{}", ".b".repeat(NAME_BYTES));
        let name = super::imports(long.as_bytes()).into_iter().next().unwrap();
        assert!((NAME_BYTES..NAME_BYTES + 2).contains(&name.len()), "{} bytes of a name", name.len());
        let late = format!("{}\nimport pty", "#".repeat(LOOK_BYTES));
        assert_eq!(super::deed(late.as_bytes()), None, "what begins later isn't looked at");
        // What comes after a block that is tried isn't.
        assert_eq!(
            deed("try:\n    try: import pty\n    except E: pass\nexcept E: pass\nimport pty"),
            Some(PROCESSES)
        );
    }

    #[test]
    fn what_only_has_such_a_name_is_fine() {
        for source in [
            "import os\nos.path.join('a', 'b')\nos.getcwd()",
            "import threading\nlock = threading.Lock()",
            "import asyncio\nasyncio.run(main())",
            "import socket\nsocket.gethostname()",
            "import socket\nsocket.create_connection(('a.test', 80))\ns = socket.socket()",
            "x.system('ls')",
            "self.os.system('ls')",
            "import signal\nsignal.SIGINT",
            "import concurrent.futures\nconcurrent.futures.Future()",
            "# os.system\n'subprocess'",
            "import subprocess\nprint(subprocess.PIPE)",
            "try:\n    import pty\nexcept ImportError:\n    pty = None",
            "system('ls')",
            "from http import HTTPStatus",
        ] {
            assert_eq!(deed(source), None, "{source}");
        }
    }

    #[test]
    fn a_script_is_held_against_what_is_there() {
        fits("import json, math\nimport numpy.linalg as la\nfrom os import path").unwrap();
        fits("import helper\nfrom helper import x").unwrap();
        fits("import sys\nsys.path.insert(0, '/inputs/lib')\nimport anything").unwrap();
        fits("print(1)").unwrap();
        fits("this is no python at all '''").unwrap();
        let misfit = |source| fits(source).unwrap_err().needs;
        assert_eq!(
            misfit("\n\nimport json\nimport requests.auth\nimport zzz"),
            "imports `requests.auth` (line 4), which the prepared Python doesn't have"
        );
        for (source, way_out) in [
            ("from subprocess import run", WayOut::Elsewhere),
            ("import socket\nsocket.socketpair()", WayOut::Loopback),
            ("import http.server", WayOut::Loopback),
            ("import termios", WayOut::Terminal),
            ("import zzz.a", WayOut::Module("zzz".to_owned())),
        ] {
            assert_eq!(fits(source).unwrap_err().way_out, way_out, "{source}");
        }
        assert_eq!(misfit("import json\nimport pty"), "starts processes (`pty`, line 2)");
        assert_eq!(misfit("import os\nx = 1\nos.fork()"), "starts processes (`os.fork`, line 3)");
        assert_eq!(
            misfit("import sys\nprint(sys.path)\nimport zzz"),
            "imports `zzz` (line 3), which the prepared Python doesn't have"
        );
    }

    #[test]
    fn bytes_that_are_no_text_come_to_an_answer() {
        let importable = BTreeSet::new();
        python(b"\xff\xfe\x00import", &importable, &|_| false).unwrap();
        assert!(python(b"import \xff\nimport a", &importable, &|_| false).is_err());
    }
}
