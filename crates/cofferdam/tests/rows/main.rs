//! The table of attacks (`THREATS.md`), row by row, against the program as its users have it.
//!
//! Each row is a function, tested as root and as an ordinary user. `cargo xtask test` prints what became
//! of them, `cargo xtask mutate` turns each control off and demands that some row notices.

#![expect(clippy::unwrap_used, reason = "a test that can't go on should say where")]

mod art;
mod brokered;
mod cred;
mod ctl;
mod iso;
mod net;
mod res;
mod sys;
mod url;
mod waiting;
#[cfg(feature = "wasm")]
mod wasm;
mod world;

/// Tests a row as root and as an ordinary user.
macro_rules! row {
    ($id:literal, $name:ident) => {
        mod $name {
            use cofferdam_testkit::rows::{Row, User};

            fn test(user: User) {
                let test = std::thread::current().name().unwrap_or("?").to_owned();
                if let Some(mut row) = Row::begin($id, &test, &crate::program(), user) {
                    match super::$name(&mut row) {
                        crate::Ended::Tested => row.end(),
                        crate::Ended::Skipped(why) => row.skip(&why),
                    }
                }
            }

            #[test]
            fn root() {
                test(User::Root);
            }

            #[test]
            fn rootless() {
                test(User::Ordinary);
            }
        }
    };
}
pub(crate) use row;

/// Tests a row in WebAssembly, as root and as an ordinary user.
#[cfg(feature = "wasm")]
macro_rules! in_wasm {
    ($id:literal, $name:ident) => {
        mod $name {
            use cofferdam_testkit::rows::{Row, User};
            use cofferdam_testkit::templates;

            fn test(user: User) {
                let test = std::thread::current().name().unwrap_or("?").to_owned();
                let templates = templates::prepared();
                if let Some(mut row) = Row::begin_in_wasm($id, &test, &crate::program(), user, templates) {
                    match super::$name(&mut row) {
                        crate::Ended::Tested => row.end(),
                        crate::Ended::Skipped(why) => row.skip(&why),
                    }
                }
            }

            #[test]
            fn root() {
                test(User::Root);
            }

            #[test]
            fn rootless() {
                test(User::Ordinary);
            }
        }
    };
}
#[cfg(feature = "wasm")]
pub(crate) use in_wasm;

/// How the test of a row ended.
enum Ended {
    /// What it attempts was attempted.
    Tested,
    /// It can't be tested yet, or not by this user, for this reason.
    Skipped(String),
}

/// The program under test: a weakened one, if somebody wants to see who notices.
fn program() -> String {
    std::env::var("COFFERDAM_ROWS_PROGRAM").unwrap_or_else(|_| env!("CARGO_BIN_EXE_cofferdam").to_owned())
}

/// Python: the folders below which the host's root might be shown, two levels deep.
const EVERY_FOLDER: &str = r"
import os
def folders():
    for top in os.listdir('/'):
        if top in ('proc', 'sys'): continue
        yield '/' + top
        try:
            yield from (entry.path for entry in os.scandir('/' + top) if entry.is_dir())
        except OSError: pass
";

/// How many connections wait at a listener, which are taken.
fn heard(listener: &std::os::unix::net::UnixListener) -> usize {
    listener.set_nonblocking(true).unwrap();
    std::iter::from_fn(|| listener.accept().ok()).count()
}
