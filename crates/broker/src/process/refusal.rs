//! Why something isn't done, in the words that whoever asked gets.

use std::io;

use super::Refused;
use crate::control::Refusal;
use crate::issuer::IssuerError;

pub(super) fn host(message: String) -> Refused {
    Refused { kind: Refusal::Host, message, fix: "see what the kernel says of the state folder".to_owned() }
}

/// Two credentials for one variable.
pub(super) fn twice(variable: &str) -> Refused {
    Refused {
        kind: Refusal::Request,
        message: format!("two credentials would be in the variable {variable}"),
        fix: "name other variables for one of them, with `deliver` or `surrogate_env` in a policy".to_owned(),
    }
}

/// The refusal that nobody waits for any more.
pub(super) fn over() -> Refused {
    Refused {
        kind: Refusal::Host,
        message: "the run ended before its credentials were there".to_owned(),
        fix: "see why its issuer takes so long".to_owned(),
    }
}

pub(super) fn of_journal(error: &io::Error) -> Refused {
    Refused {
        kind: Refusal::Host,
        message: format!("the journal of leases can't be written: {error}"),
        fix: "see that there is room for it below the state folder, and that it is yours".to_owned(),
    }
}

pub(super) fn of_issuer(error: &IssuerError) -> Refused {
    let (kind, fix) = match error {
        IssuerError::Root { .. } => (Refusal::Host, "mend its `root` in issuers.toml"),
        IssuerError::Unreachable { .. } | IssuerError::Lost { .. } => {
            (Refusal::Upstream, "see whether it runs and can be reached from here")
        }
        IssuerError::Declined { .. } => {
            (Refusal::Upstream, "call it by hand with the same input, to see what it says")
        }
        IssuerError::Unusable { .. } => (
            Refusal::Upstream,
            "have the helper print what is missing: docs/credentials.md says what it prints",
        ),
        IssuerError::Refused { .. } => (
            Refusal::Upstream,
            "see that its root may do this, and that its server has what its table names (docs/credentials.md and \
             docs/issuers.md say what it takes)",
        ),
    };
    Refused { kind, message: error.to_string(), fix: fix.to_owned() }
}
