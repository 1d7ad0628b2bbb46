//! What is seen of an issuer when it is tried: one credential is minted, tried, revoked, and seen to be dead.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// An issuer that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tested {
    /// Its name.
    pub issuer: String,
    /// What came of it.
    pub seen: Seen,
    /// What is as its server should not have it, though it mints.
    pub findings: Vec<Finding>,
}

/// What came of trying an issuer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seen {
    /// What it minted worked, was revoked, and is dead.
    Dead {
        /// From asking for it until it was there.
        minted: Duration,
        /// From the beginning of its end until it was seen to be dead.
        after: Duration,
        /// How that was seen, as a clause.
        verified: String,
    },
    /// What it minted can't be revoked, so nothing here could see it work or dead.
    Expires {
        /// From asking for it until it was there.
        minted: Duration,
        /// When it ends by itself, where its issuer says so.
        expires: Option<SystemTime>,
    },
    /// It failed.
    Failed(Finding),
    /// Its secret is there. It isn't made for a run and outlives each, and nothing can be minted.
    Weak,
}

impl Seen {
    /// Whether it is as it should be.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        match self {
            Seen::Dead { .. } | Seen::Expires { .. } | Seen::Weak => true,
            Seen::Failed(_) => false,
        }
    }
}

/// Something that isn't as it should be, and the way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What is wrong, as a clause.
    pub message: String,
    /// What to do next.
    pub fix: String,
}
