//! Whether a file is a program of this machine's own kind, by the first bytes of it.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use crate::files::value::BadValue;
use crate::places::quoted;

/// What of an ELF header tells the machine: class and byte order, and `e_machine`.
/// Source: System V ABI, "ELF Header"; the offsets are the same in both classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kind {
    class: u8,
    order: u8,
    machine: u16,
}

/// Bytes up to and including `e_machine`.
const HEADER_BYTES: usize = 20;

/// Refuses what isn't a program of this machine's kind.
pub(super) fn runs_here(path: &Path) -> Result<(), BadValue> {
    let ours = kind(Path::new("/proc/self/exe"));
    match (kind(path), ours) {
        (Err(error), _) => {
            let why = format!("could not read {}: {error}", quoted(path));
            Err(BadValue::new(why, "make it readable for you, or name another interpreter"))
        }
        (Ok(None), _) => {
            let why = format!("{} is a script, or no program at all, and not an interpreter", quoted(path));
            let help = "name the interpreter itself: run it with -c 'import sys; print(sys.executable)'";
            Err(BadValue::new(why, help))
        }
        (Ok(Some(theirs)), Ok(Some(ours))) if theirs != ours => {
            let why =
                format!("{} is for {}, and this machine is {}", quoted(path), theirs.words(), ours.words());
            Err(BadValue::new(why, "name an interpreter that was built for this machine"))
        }
        // Where our own header can't be read, the kernel will say at the start what it can't run.
        (Ok(Some(_)), _) => Ok(()),
    }
}

fn kind(path: &Path) -> io::Result<Option<Kind>> {
    if !fs::metadata(path)?.is_file() {
        return Ok(None); // opening a pipe would wait
    }
    let mut bytes = vec![];
    fs::File::open(path)?.take(HEADER_BYTES as u64).read_to_end(&mut bytes)?;
    Ok(of_header(&bytes))
}

fn of_header(bytes: &[u8]) -> Option<Kind> {
    let [0x7f, b'E', b'L', b'F', class, order, .., low, high] = *bytes.first_chunk::<HEADER_BYTES>()? else {
        return None;
    };
    let machine = if order == 2 { u16::from_be_bytes([low, high]) } else { u16::from_le_bytes([low, high]) };
    Some(Kind { class, order, machine })
}

impl Kind {
    /// In words; numbers are those of `e_machine` in the ABI's own list.
    fn words(self) -> String {
        let machine = match self.machine {
            3 => "x86".to_owned(),
            22 => "s390".to_owned(),
            21 => "ppc64".to_owned(),
            40 => "arm".to_owned(),
            62 => "x86-64".to_owned(),
            183 => "aarch64".to_owned(),
            243 => "riscv".to_owned(),
            other => format!("machine {other}"),
        };
        format!("{machine} ({} bits)", if self.class == 1 { 32 } else { 64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Vec<u8> {
        fs::read("/proc/self/exe").unwrap()[..64].to_vec()
    }

    fn judged(bytes: &[u8]) -> Result<(), BadValue> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("python");
        fs::write(&path, bytes).unwrap();
        runs_here(&path)
    }

    #[test]
    fn a_program_of_another_machine_is_refused_by_its_header() {
        assert_eq!(judged(&header()), Ok(()));
        let mut other = header();
        other[18..20].copy_from_slice(&[40, 0]);
        assert!(judged(&other).unwrap_err().why.contains("is for arm"));
        let mut narrow = header();
        narrow[4] = 1;
        assert!(judged(&narrow).unwrap_err().why.contains("32 bits"));
    }

    #[test]
    fn what_is_no_program_is_refused() {
        for bytes in [b"#!/bin/sh\nexec python \"$@\"\n".as_slice(), b"", b"\x7fELF", &header()[..19]] {
            assert!(judged(bytes).unwrap_err().help.contains("sys.executable"), "{bytes:?}");
        }
        assert!(runs_here(Path::new("/dev/null")).is_err());
        assert!(runs_here(Path::new("/nonexistent")).is_err());
    }
}
