//! Passwords that are made here.

use std::io;

use cofferdam_core::secret::Secret;

/// Random bytes in a password: 192 bits, as 32 letters of base 64. Too many to be guessed from a hash without salt.
const PASSWORD_BYTES: usize = 24;

/// A password of letters that stand in a URL and a shell unquoted.
///
/// # Errors
///
/// What the kernel said: it has no randomness.
pub(super) fn password() -> io::Result<Secret> {
    let bytes: [u8; PASSWORD_BYTES] = cofferdam_sys::fd::random_bytes()?;
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = Vec::with_capacity(PASSWORD_BYTES / 3 * 4);
    for chunk in bytes.chunks_exact(3) {
        let number = u32::from_be_bytes([0, chunk[0], chunk[1], chunk[2]]);
        text.extend([18, 12, 6, 0].map(|shift| LETTERS[(number >> shift & 63) as usize]));
    }
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_differ_and_need_no_quotes() {
        let (one, two) = (password().unwrap(), password().unwrap());
        assert!(one.expose() != two.expose() && one.expose().len() == 32);
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        assert!(one.expose().iter().all(plain));
    }
}
