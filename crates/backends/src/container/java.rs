//! The store of certificates that Java trusts, with one more.
//!
//! Debian's is of Java's own first form (`sun.security.provider.JavaKeyStore`): a magic number, a version, how many
//! entries there are, the entries, and a digest of all of that with a password that everybody knows. An entry is
//! put behind the others, so those needn't be understood.

use std::fs;
use std::path::{Path, PathBuf};

use sha1::{Digest, Sha1};

/// Where Debian's Javas all look.
pub(super) const STORE: &str = "/etc/ssl/certs/java/cacerts";

/// Everybody's password for a store of public certificates, as the digest takes it: UTF-16, and words of its own.
const PASSWORD: &str = "changeit";
const WHITENER: &[u8] = b"Mighty Aphrodite";

const MAGIC: [u8; 8] = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2];
const HEAD_BYTES: usize = MAGIC.len() + 4;
const DIGEST_BYTES: usize = 20;

/// The host's store with one certificate more, and where it is shown. None where the host has none of this form.
pub(super) fn with(certificate: &str) -> Option<(PathBuf, Vec<u8>)> {
    let path = Path::new(STORE);
    Some((path.to_owned(), add(&fs::read(path).ok()?, certificate)?))
}

/// A store with one entry more. Java reads certificates as PEM there too.
fn add(store: &[u8], certificate: &str) -> Option<Vec<u8>> {
    let (head, rest) = store.split_at_checked(HEAD_BYTES)?;
    let (magic, count) = head.split_at_checked(MAGIC.len())?;
    let entries = rest.get(..rest.len().checked_sub(DIGEST_BYTES)?)?;
    let count = u32::from_be_bytes(count.try_into().ok()?);
    if magic != MAGIC || digest(&store[..store.len() - DIGEST_BYTES]) != store[store.len() - DIGEST_BYTES..] {
        return None; // of another form, or with a password of its own
    }
    let mut made = [&MAGIC[..], &count.checked_add(1)?.to_be_bytes(), entries].concat();
    const TRUSTED_CERTIFICATE: u32 = 2;
    made.extend(TRUSTED_CERTIFICATE.to_be_bytes());
    made.extend(text("cofferdam")?);
    made.extend(0u64.to_be_bytes()); // when it was put there
    made.extend(text("X.509")?);
    made.extend(u32::try_from(certificate.len()).ok()?.to_be_bytes());
    made.extend(certificate.as_bytes());
    let digest = digest(&made);
    made.extend(digest);
    Some(made)
}

fn text(text: &str) -> Option<Vec<u8>> {
    Some([&u16::try_from(text.len()).ok()?.to_be_bytes(), text.as_bytes()].concat())
}

fn digest(bytes: &[u8]) -> [u8; DIGEST_BYTES] {
    let password: Vec<u8> = PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect();
    Sha1::new().chain_update(password).chain_update(WHITENER).chain_update(bytes).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_put_behind_the_others_and_the_digest_is_of_both() {
        let mut empty = [&MAGIC[..], &0u32.to_be_bytes()].concat();
        empty.extend(digest(&empty.clone()));
        let one = add(&empty, "a certificate").unwrap();
        let two = add(&one, "another").unwrap();
        assert_eq!(two[MAGIC.len()..HEAD_BYTES], 2u32.to_be_bytes());
        assert!(two.windows(13).any(|part| part == b"a certificate"));
        assert!(add(b"", "x").is_none() && add(&two[..two.len() - 1], "x").is_none());
    }

    #[test]
    fn javas_own_tool_reads_it() {
        let pem = "/etc/ssl/certs/ISRG_Root_X1.pem";
        let (Ok(store), Ok(pem)) = (fs::read(STORE), fs::read_to_string(pem)) else { return };
        let Some(made) = add(&store, &pem) else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cacerts");
        fs::write(&path, made).unwrap();
        let mut keytool = std::process::Command::new("keytool");
        keytool.args(["-list", "-storepass", PASSWORD, "-alias", "cofferdam", "-keystore"]).arg(&path);
        let Ok(listed) = keytool.output() else { return };
        let said = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert!(listed.status.success() && said.contains("trustedCertEntry"), "{said}");
    }
}
