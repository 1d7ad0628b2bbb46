//! The rows of the table of attacks in WebAssembly: Python in a sandbox of it, and modules made for the purpose.
//!
//! What a row attempts in Python is what the container's attempts, as far as there is such a thing there. A
//! module's attempts are calls of WASI with numbers and names that no library would use.

mod art;
mod cred;
mod ctl;
mod iso;
mod net;
mod res;
mod url;

use std::path::PathBuf;

use cofferdam_testkit::rows::{Attempt, Attempts, Row};

/// What of WASI the modules here import, and four pages of memory.
pub(crate) const IMPORTS: &str = r#"
(import "wasi_snapshot_preview1" "fd_close" (func $close (param i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_filestat_set_size" (func $set_size (param i32 i64) (result i32)))
(import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_renumber" (func $renumber (param i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_filestat_set_times"
    (func $set_times (param i32 i32 i32 i32 i64 i64 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_link" (func $link (param i32 i32 i32 i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_open"
    (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_remove_directory" (func $rmdir (param i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_rename" (func $rename (param i32 i32 i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_symlink" (func $symlink (param i32 i32 i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "path_unlink_file" (func $unlink (param i32 i32 i32) (result i32)))
(import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
(memory (export "memory") 4)
"#;

/// The folders that a module finds open, as descriptors; what is shown comes after its own three.
pub(crate) const WORKSPACE: u32 = 3;
pub(crate) const TMP: u32 = 5;
pub(crate) const INPUTS: u32 = 7;

/// A module that makes calls one after the other, and prints of each what came of it.
#[derive(Default)]
pub(crate) struct Calls {
    names: Vec<String>,
    data: Vec<u8>,
    body: String,
}

/// Where the texts of [`Calls`] lie, and below them what it prints: a letter each.
const TEXTS: usize = 8192;
const LETTERS: usize = 4096;

/// The letter of success; that of an error is as far above it as the error's number.
const DONE: u8 = b'0';

/// The rights to read and to write, and to do the same with what is opened below.
pub(crate) const READ: u64 = 2;
pub(crate) const WRITE: u64 = 64 | 1 << 22;

/// What `path_open` may do besides.
pub(crate) const CREATE: u32 = 1;
pub(crate) const DIRECTORY: u32 = 2;
pub(crate) const TRUNCATE: u32 = 8;

/// Whether a last link is followed.
const FOLLOW: u32 = 1;

impl Calls {
    /// The two words that stand for a text.
    fn text(&mut self, text: &str) -> String {
        let at = TEXTS + self.data.len();
        self.data.extend(text.as_bytes());
        format!("(i32.const {at}) (i32.const {})", text.len())
    }

    /// A call of an expression that gives an error's number.
    pub(crate) fn call(&mut self, name: &str, expression: &str) {
        let at = LETTERS + self.names.len();
        self.body
            .push_str(&format!("(i32.store8 (i32.const {at}) (i32.add (i32.const {DONE}) {expression}))\n"));
        self.names.push(name.to_owned());
    }

    /// Opens something below a folder, where a last link is followed.
    pub(crate) fn open(&mut self, name: &str, folder: u32, path: &str, flags: u32, rights: u64) {
        let path = self.text(path);
        self.call(
            name,
            &format!(
                "(call $open (i32.const {folder}) (i32.const {FOLLOW}) {path} (i32.const {flags}) \
                 (i64.const {rights}) (i64.const {rights}) (i32.const 0) (i32.const 0))"
            ),
        );
    }

    /// A call that takes a folder and a path.
    pub(crate) fn at(&mut self, name: &str, what: &str, folder: u32, path: &str) {
        let path = self.text(path);
        self.call(name, &format!("(call ${what} (i32.const {folder}) {path})"));
    }

    /// A call that takes two of both: a rename or a link.
    pub(crate) fn between(&mut self, name: &str, what: &str, from: (u32, &str), to: (u32, &str)) {
        let (old, new) = (self.text(from.1), self.text(to.1));
        let flags = if what == "link" { "(i32.const 0)" } else { "" };
        let (from, to) = (from.0, to.0);
        self.call(name, &format!("(call ${what} (i32.const {from}) {flags} {old} (i32.const {to}) {new})"));
    }

    /// A link with this content.
    pub(crate) fn symlink(&mut self, name: &str, content: &str, folder: u32, path: &str) {
        let (content, path) = (self.text(content), self.text(path));
        self.call(name, &format!("(call $symlink {content} (i32.const {folder}) {path})"));
    }

    /// The module.
    fn wasm(&self) -> Vec<u8> {
        let texts: String = self.data.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let Calls { body, names, .. } = self;
        let count = names.len();
        assert!(LETTERS + count < TEXTS, "too many calls");
        wat::parse_str(format!(
            "(module {IMPORTS} (data (i32.const {TEXTS}) \"{texts}\") (func (export \"_start\")\n{body}\
             (i32.store (i32.const 16) (i32.const {LETTERS})) (i32.store (i32.const 20) (i32.const {count}))\n\
             (drop (call $write (i32.const 1) (i32.const 16) (i32.const 1) (i32.const 24)))))"
        ))
        .unwrap()
    }

    /// Runs it inside under options, and gives what came of each call.
    pub(crate) fn run(&self, row: &mut Row, options: &[&str]) -> Attempts {
        let file = module(row, "calls.wasm", &self.wasm());
        let ran = row.run(&[options, &[file.to_str().unwrap()]].concat()).exits(0);
        assert_eq!(ran.stdout.len(), self.names.len(), "{ran:?}");
        let attempt = |(name, letter): (&String, u8)| {
            let detail = format!("error {}", letter - DONE);
            (name.replace(' ', "_"), Attempt { breach: letter == DONE, detail })
        };
        self.names.iter().zip(ran.stdout.bytes()).map(attempt).collect()
    }
}

/// A module as a file of the user's who runs the sandbox.
pub(crate) fn module(row: &Row, name: &str, wasm: &[u8]) -> PathBuf {
    let file = row.product().file(name, wasm);
    row.product().give(&file);
    file
}

/// A module of the imports above, some more, and a body of its start.
pub(crate) fn assembled(more: &str, body: &str) -> Vec<u8> {
    wat::parse_str(format!("(module {IMPORTS} {more} (func (export \"_start\") {body}))")).unwrap()
}
