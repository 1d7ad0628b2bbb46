//! Keys and certificates, as OpenSSH has them. Source: its `PROTOCOL.certkeys` and `PROTOCOL.key`.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_core::secret::Secret;
use ssh_key::certificate::{Builder, CertType};
use ssh_key::private::{Ed25519Keypair, KeypairData};
use ssh_key::{Algorithm, LineEnding, PrivateKey};
use zeroize::Zeroizing;

/// How long before now a certificate is valid, for servers whose clock is behind.
const EARLIER: Duration = Duration::from_secs(60);

/// What of a root isn't a key to sign with. Keys of other kinds aren't even read.
const NOT_ED25519: &str = "isn't a private key of Ed25519 as OpenSSH writes it, the one kind with which this version \
                           signs: make an authority with `ssh-keygen -t ed25519`";

/// Who signs.
pub(super) struct Authority(PrivateKey);

/// What a certificate is to say.
pub(super) struct Wanted<'a> {
    pub(super) key_id: &'a str,
    pub(super) serial: u64,
    /// Never empty: a certificate without principals is for everybody.
    pub(super) principal: &'a str,
    /// Never empty: what is run instead of whatever is asked for.
    pub(super) command: &'a str,
    /// The networks it is taken from; none for any.
    pub(super) sources: &'a [String],
    pub(super) until: SystemTime,
}

/// A key, and the certificate for it, as one line.
pub(super) struct Signed {
    pub(super) key: Secret,
    pub(super) certificate: String,
}

impl Authority {
    /// Reads a private key. What is wrong is said as a clause about the root, without any of it.
    pub(super) fn parse(text: &[u8]) -> Result<Authority, String> {
        let key = PrivateKey::from_openssh(text).map_err(|_| NOT_ED25519)?;
        if key.is_encrypted() {
            return Err(
                "is behind a passphrase, which nobody is there to type: keep one without, which nobody else \
                        can read, or have a program print it"
                    .to_owned(),
            );
        }
        match key.algorithm() {
            Algorithm::Ed25519 => Ok(Authority(key)),
            _ => Err(NOT_ED25519.to_owned()),
        }
    }

    /// Makes a key and signs a certificate for it.
    pub(super) fn sign(&self, wanted: &Wanted<'_>) -> Result<Signed, String> {
        if wanted.principal.is_empty() || wanted.command.is_empty() {
            return Err("must not sign for everybody, or for every command".to_owned());
        }
        self.signed(wanted).map_err(|error| format!("signs nothing: {error}"))
    }

    fn signed(&self, wanted: &Wanted<'_>) -> Result<Signed, Failed> {
        let seed = Zeroizing::new(cofferdam_sys::fd::random_bytes::<32>()?);
        let nonce = cofferdam_sys::fd::random_bytes::<32>()?;
        let pair = Ed25519Keypair::from_seed(&seed);
        let after = seconds(SystemTime::now() - EARLIER);
        let mut builder = Builder::new(nonce, pair.public, after, seconds(wanted.until))?;
        builder.serial(wanted.serial)?.key_id(wanted.key_id)?.cert_type(CertType::User)?;
        builder.valid_principal(wanted.principal)?.critical_option("force-command", wanted.command)?;
        if !wanted.sources.is_empty() {
            builder.critical_option("source-address", wanted.sources.join(","))?;
        }
        builder.comment(wanted.key_id)?;
        let certificate = builder.sign(&self.0)?.to_openssh()?;
        let key = PrivateKey::new(KeypairData::from(pair), wanted.key_id)?;
        let mut text = key.to_openssh(LineEnding::LF)?;
        Ok(Signed { key: Secret::new(std::mem::take(&mut *text).into_bytes()), certificate })
    }
}

/// Why nothing was signed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Key(#[from] ssh_key::Error),
    #[error("there is no randomness here: {0}")]
    Random(#[from] io::Error),
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
