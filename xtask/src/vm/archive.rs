//! The kernel's initial file system: a cpio archive in the form that it unpacks, uncompressed. Source:
//! `Documentation/driver-api/early-userspace/buffer-format.rst`.

use std::io::Write;

/// An archive that is being written.
#[derive(Debug, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

/// Kinds and permissions of entries, as `stat` has them.
const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    /// Folders; one comes after the one that it is in.
    pub(super) fn folders(&mut self, names: &[&str]) {
        for name in names {
            self.entry(name, FOLDER, &[]);
        }
    }

    /// A file in a folder that is there.
    pub(super) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, FILE, content);
    }

    /// The same, which can be executed.
    pub(super) fn program(&mut self, name: &str, content: &[u8]) {
        self.entry(name, PROGRAM, content);
    }

    /// The whole archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let (size, name_size) = (content.len() as u32, name.len() as u32 + 1);
        // Inode, mode, owner, group, links, time, size, device and special device (two numbers each),
        // length of the name, and a checksum that this form has no use for.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend(b"070701");
        for field in fields {
            let _ = write!(self.bytes, "{field:08x}"); // a vector takes everything
        }
        self.bytes.extend(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_its_name_and_content_at_multiples_of_four() {
        let mut archive = Archive::default();
        archive.program("init", b"#!/x\n");
        let bytes = archive.finish();
        assert_eq!(&bytes[..22], b"07070100000001000081ed");
        assert_eq!(&bytes[110..114], b"init");
        assert_eq!(&bytes[116..121], b"#!/x\n");
        assert_eq!(&bytes[124..130], b"070701");
        assert_eq!(bytes.len() % 4, 0);
    }
}
