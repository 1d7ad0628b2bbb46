//! The key that signs tokens, and the name by which a registry knows it.

use std::str;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::rsa::KeyPair as RsaKeyPair;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RSA_PKCS1_SHA256};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// A private key.
pub(super) enum Key {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
}

/// Where the bits of an RSA key stand in a SubjectPublicKeyInfo (RFC 5280): what comes before is this algorithm.
const RSA_ALGORITHM: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

/// The same for a point on P-256 (RFC 5480).
const P256_ALGORITHM: &[u8] = &[
    0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07,
];

impl Key {
    /// Reads a private key in PEM. What is wrong is said as a clause about the root, without any of it.
    pub(super) fn parse(text: &[u8]) -> Result<Key, &'static str> {
        const KINDS: &str = "isn't a private key of RSA (2048 bits or more) or P-256 in PEM";
        let text = str::from_utf8(text).map_err(|_| KINDS)?;
        let (label, bytes) = pem(text).ok_or(KINDS)?;
        let rsa = |key: Result<RsaKeyPair, _>| key.map(Key::Rsa).map_err(|_: ring::error::KeyRejected| KINDS);
        match label {
            "PRIVATE KEY" => match RsaKeyPair::from_pkcs8(&bytes) {
                Ok(key) => Ok(Key::Rsa(key)),
                Err(_) => {
                    let random = SystemRandom::new();
                    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &bytes, &random);
                    key.map(Key::P256).map_err(|_| KINDS)
                }
            },
            "RSA PRIVATE KEY" => rsa(RsaKeyPair::from_der(&bytes)),
            "EC PRIVATE KEY" => {
                Err("is written as SEC 1 has it: write it anew with `openssl pkcs8 -topk8 -nocrypt -in KEY`")
            }
            "ENCRYPTED PRIVATE KEY" => Err("is behind a passphrase, which nobody is there to type"),
            _ => Err(KINDS),
        }
    }

    /// The algorithm's name in a token (RFC 7518).
    pub(super) fn algorithm(&self) -> &'static str {
        match self {
            Key::Rsa(_) => "RS256",
            Key::P256(_) => "ES256",
        }
    }

    /// The name by which a registry finds the key among the certificates that it trusts: 240 bits of the hash of the
    /// public key in base 32, in groups of four. Source: libtrust, `keyIDFromCryptoKey`.
    pub(super) fn id(&self) -> String {
        const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
        let hash = Sha256::digest(self.public());
        let mut id = String::new();
        for (group, bytes) in hash[..30].chunks_exact(5).enumerate() {
            let number = bytes.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
            for digit in 0..8 {
                if digit % 4 == 0 && (group, digit) != (0, 0) {
                    id.push(':');
                }
                id.push(char::from(DIGITS[(number >> (35 - 5 * digit) & 31) as usize]));
            }
        }
        id
    }

    /// Signs.
    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, &'static str> {
        let random = SystemRandom::new();
        let failed = |_| "signs nothing";
        match self {
            Key::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
            Key::P256(key) => Ok(key.sign(&random, message).map_err(failed)?.as_ref().to_vec()),
        }
    }

    /// The SubjectPublicKeyInfo, in DER.
    fn public(&self) -> Vec<u8> {
        let (algorithm, key) = match self {
            Key::Rsa(key) => (RSA_ALGORITHM, key.public_key().as_ref()),
            Key::P256(key) => (P256_ALGORITHM, key.public_key().as_ref()),
        };
        let bits = tagged(0x03, &[&[0], key].concat()); // no bits of the last byte are unused
        tagged(0x30, &[algorithm, &bits].concat())
    }
}

/// A value in DER, behind its tag and its length.
fn tagged(tag: u8, value: &[u8]) -> Vec<u8> {
    let length = value.len().to_be_bytes();
    let digits = &length[length.iter().take_while(|byte| **byte == 0).count()..];
    let mut all = vec![tag];
    match digits {
        [] => all.push(0),
        [short @ ..=0x7f] => all.push(*short),
        long => {
            all.push(0x80 | long.len() as u8);
            all.extend_from_slice(long);
        }
    }
    all.extend_from_slice(value);
    all
}

/// What stands in the first block of PEM (RFC 7468), and its label.
fn pem(text: &str) -> Option<(&str, Zeroizing<Vec<u8>>)> {
    let (label, rest) = text.split_once("-----BEGIN ")?.1.split_once("-----")?;
    let body = rest.split_once("-----END ")?.0;
    // With room for all of it, so that no copy of it is left behind.
    let mut digits = Zeroizing::new(Vec::with_capacity(body.len()));
    digits.extend(body.bytes().filter(|byte| !byte.is_ascii_whitespace()));
    let mut bytes = Zeroizing::new(vec![0; digits.len()]);
    let length = STANDARD.decode_slice(&*digits, &mut bytes).ok()?;
    bytes.truncate(length);
    Some((label, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_in_der_are_short_or_say_how_long_they_are() {
        assert_eq!(tagged(3, &[]), [3, 0]);
        assert_eq!(tagged(3, &[7; 127])[..3], [3, 127, 7]);
        assert_eq!(tagged(3, &[7; 128])[..4], [3, 0x81, 128, 7]);
        assert_eq!(tagged(3, &[7; 300])[..5], [3, 0x82, 1, 44, 7]);
    }

    #[test]
    fn what_is_no_key_is_refused_without_being_shown() {
        for (bad, says) in [
            ("hush", "isn't a private key"),
            ("-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----", "isn't a private key"),
            ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "isn't a private key"),
            ("-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----", "SEC 1"),
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED", "behind a passphrase"),
        ] {
            let why = Key::parse(bad.as_bytes()).err().unwrap();
            assert!(why.contains(says) && !why.contains("hush"), "{bad}: {why}");
        }
    }
}
