//! What the host and the broker say to each other: a message as JSON, and behind it the secrets that belong to it, so
//! that no secret has a form in which a message could be printed.
//!
//! ```text
//! length(4) message   count(4)   { length(4) bytes }…        numbers are little-endian
//! ```

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use cofferdam_core::secret::Secret;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::trial::Tested;

/// The longest message, and the longest secret.
const MOST_BYTES: usize = 1 << 20;

/// The most secrets with one message.
const MOST_SECRETS: usize = 256;

/// What is asked of the broker. Each has a number, which the answer has too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToBroker {
    /// Say what an issuer is for.
    Describe { issuer: String },
    /// Mint what a run is to hold.
    Prepare { task: u64, run: String, asks: Vec<Ask> },
    /// Revoke all that a run holds, and see whether it is dead.
    End { task: u64 },
    /// Revoke what nobody is responsible for, and forget none of it yet.
    Sweep(Whose),
    /// What the sweep saw dead is written down, so that it may be forgotten.
    Swept,
    /// Mint from each issuer, or from one, and see that it works and that it dies. `run` is whose it is meanwhile.
    Test { run: String, issuer: Option<String> },
    /// Whether something that happened is written down. It has no answer.
    Written { event: u64, is_written: bool },
}

/// Which of what nobody is responsible for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Whose {
    /// The run; none for any.
    pub(crate) run: Option<String>,
    /// The credential's name; none for any.
    pub(crate) name: Option<String>,
    /// How long each may take to be revoked and seen dead, in milliseconds.
    pub(crate) within_ms: u64,
}

/// A credential that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) name: String,
    pub(crate) issuer: String,
    pub(crate) scope: BTreeMap<String, Vec<String>>,
    /// How long it may live at most, in milliseconds.
    pub(crate) ttl_ms: u64,
    /// The same, where that is what a policy says and not how long the run may last.
    pub(crate) asked_ttl_ms: Option<u64>,
    /// Variables and their templates. Empty for those that clients of this kind read.
    pub(crate) deliver: Vec<(String, String)>,
    /// Where it stands in requests, if it is kept from the program.
    pub(crate) in_requests: Option<InRequests>,
}

/// How a credential stands in requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct InRequests {
    /// What the policy calls the place; none for the issuer's.
    pub(crate) inject: Option<String>,
    /// How often it may be used.
    pub(crate) max_uses: Option<u64>,
    /// The rules that have it, in their order.
    pub(crate) rules: Vec<RuleText>,
}

/// A rule for requests over TLS, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RuleText {
    pub(crate) host: String,
    pub(crate) ports: Vec<u16>,
    pub(crate) methods: Option<Vec<String>>,
    pub(crate) paths: Option<Vec<String>>,
}

/// What the broker answers. With [`Answer::Prepared`] come as many secrets as there are variables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    Described {
        hosts: Vec<String>,
        fields: Vec<String>,
        variables: Vec<(String, String)>,
        stands_in_requests: bool,
    },
    Prepared {
        variables: Vec<String>,
        leases: Vec<Lease>,
    },
    Ended {
        leases: Vec<Ended>,
    },
    Tested {
        issuers: Vec<Tested>,
    },
    /// Nobody asked: something happened to a run's credentials. The number of its message is zero.
    Happened {
        task: u64,
        event: u64,
        what: What,
    },
    /// It isn't done; who is to blame is in the kind.
    Refused {
        kind: Refusal,
        message: String,
        fix: String,
    },
}

/// What happens to credentials while a run lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum What {
    /// One was minted, since a request carries it. It goes out when that is written down.
    Minted(Lease),
    /// A host sent it back, and it was taken out.
    Reflected { name: String, host: String },
}

/// Why something isn't done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    /// What was asked for is more than the ceiling, or makes no sense.
    Request,
    /// The operator's side is wrong: the file, a root, the journal.
    Host,
    /// The issuer doesn't do it.
    Upstream,
}

/// A lease that began. Times are seconds of Unix time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pub(crate) name: String,
    pub(crate) issuer: String,
    pub(crate) scope: BTreeMap<String, Vec<String>>,
    pub(crate) minted: u64,
    pub(crate) expires: Option<u64>,
    pub(crate) can_revoke: bool,
    /// What tells its value from others without saying it.
    pub(crate) fingerprint: String,
    /// Whether it is a secret that wasn't made for this run.
    pub(crate) is_weak: bool,
    /// How often requests carried it; none where programs hold it.
    pub(crate) uses: Option<u64>,
}

/// What became of a lease. `run` is whose it was, which is not known otherwise of an orphan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) run: String,
    pub(crate) lease: Lease,
    pub(crate) state: State,
}

/// As in `core::lease`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum State {
    Dead { after_us: u64, verified: String },
    Expires,
    Unknown { why: String },
}

/// A message on its way, and the number by which its answer is known.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Numbered<T> {
    pub(crate) number: u64,
    pub(crate) message: T,
}

/// Writes a message.
///
/// # Errors
///
/// What the kernel said.
pub(crate) fn write<T: Serialize>(
    to: &mut impl Write,
    message: &Numbered<T>,
    secrets: &[&Secret],
) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let room = 8 + text.len() + secrets.iter().map(|secret| 4 + secret.expose().len()).sum::<usize>();
    // As large as it gets, so that no copy of a secret is left behind.
    let mut frame = zeroize::Zeroizing::new(Vec::with_capacity(room));
    let mut part = |bytes: &[u8]| {
        frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        frame.extend_from_slice(bytes);
    };
    part(&text);
    frame.extend_from_slice(&(secrets.len() as u32).to_le_bytes());
    for secret in secrets {
        frame.extend_from_slice(&(secret.expose().len() as u32).to_le_bytes());
        frame.extend_from_slice(secret.expose());
    }
    to.write_all(&frame)
}

/// Reads a message; none at the end.
///
/// # Errors
///
/// `InvalidData` for what makes no sense; else what the kernel said.
pub(crate) fn read<T: DeserializeOwned>(
    from: &mut impl Read,
) -> io::Result<Option<(Numbered<T>, Vec<Secret>)>> {
    let Some(length) = number(from)? else { return Ok(None) };
    let text = part(from, length)?;
    let message = serde_json::from_slice(text.expose())?;
    let count = number(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if count > MOST_SECRETS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut secrets = vec![];
    for _ in 0..count {
        let length = number(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        secrets.push(part(from, length)?);
    }
    Ok(Some((message, secrets)))
}

fn number(from: &mut impl Read) -> io::Result<Option<usize>> {
    let mut bytes = [0; 4];
    match from.read_exact(&mut bytes) {
        Ok(()) => Ok(Some(u32::from_le_bytes(bytes) as usize)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn part(from: &mut impl Read, length: usize) -> io::Result<Secret> {
    if length > MOST_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = zeroize::Zeroizing::new(vec![0; length]);
    from.read_exact(&mut bytes)?;
    Ok(Secret::new(std::mem::take(&mut *bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_secrets_stand_beside_the_message() {
        let message = Numbered { number: 7, message: ToBroker::End { task: 3 } };
        let secret = Secret::new(b"p\"w".to_vec());
        let mut frame = vec![];
        write(&mut frame, &message, &[&secret]).unwrap();
        let (read_back, secrets) = read::<ToBroker>(&mut &frame[..]).unwrap().unwrap();
        assert_eq!((read_back.number, read_back.message), (7, ToBroker::End { task: 3 }));
        assert_eq!(secrets.iter().map(Secret::expose).collect::<Vec<_>>(), [b"p\"w"]);
        assert!(read::<ToBroker>(&mut &b""[..]).unwrap().is_none());
        for cut in 5..frame.len() {
            assert!(read::<ToBroker>(&mut &frame[..cut]).is_err(), "{cut}");
        }
        assert!(read::<ToBroker>(&mut &[0xff; 8][..]).is_err());
    }
}
