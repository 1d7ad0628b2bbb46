//! What makes an issuer's table unfit, beyond its shape: seen when the file is read, before anybody asks.

use super::{IssuerConfig, Kind};

/// Why an issuer's table can't be used. The operator who wrote it is to blame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Unfit {
    /// The key that is wrong.
    pub key: &'static str,
    /// What is wrong with it.
    pub message: String,
    /// What to do next.
    pub fix: String,
}

impl Unfit {
    fn new(key: &'static str, message: String, fix: &str) -> Self {
        Unfit { key, message, fix: fix.to_owned() }
    }
}

/// What each of these does outlives the user who did it: further users, settings, other code, other data.
const OUTLIVING: [&str; 8] =
    ["acl", "config", "debug", "failover", "function", "module", "replicaof", "slaveof"];

impl IssuerConfig {
    /// Whether it can be used as it stands.
    ///
    /// # Errors
    ///
    /// [`Unfit`] for the first thing that is wrong.
    pub fn check(&self) -> Result<(), Unfit> {
        match &self.kind {
            Kind::Postgres { .. } | Kind::Exec { .. } => Ok(()),
            Kind::Redis { keys, commands } => {
                keys.iter().try_for_each(|key| fit_pattern(key))?;
                commands.iter().try_for_each(|command| fit_command(command))
            }
        }
    }
}

/// Refuses what could be taken for more than one pattern, or for another rule of an ACL.
///
/// Source: redis.io/docs, "ACL rules". A rule is known by its first letter, so none of those may begin a pattern.
fn fit_pattern(pattern: &str) -> Result<(), Unfit> {
    let plain = ["%R~", "%W~", "%RW~"].iter().find_map(|prefix| pattern.strip_prefix(prefix));
    let plain = plain.unwrap_or(pattern);
    let is_fit = !plain.is_empty()
        && !plain.contains(|letter: char| letter.is_whitespace() || letter.is_control())
        && !plain.starts_with(['~', '%', '&', '+', '-', '@', '<', '>', '#', '!', '(', ')']);
    if is_fit {
        return Ok(());
    }
    let message = format!("`{pattern}` is no pattern of keys");
    Err(Unfit::new("keys", message, "write it like `orders:*`, or `%R~orders:*` where it may only be read"))
}

/// Refuses what is no command's name, and what a user must not do who is to be gone without a trace.
fn fit_command(command: &str) -> Result<(), Unfit> {
    let is_name = |name: &str| {
        name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
    };
    if command.starts_with('@') {
        let message = format!("`{command}` is a category, and what is in it is the server's to change");
        return Err(Unfit::new("commands", message, "name the commands themselves, like `get`"));
    }
    if !command.splitn(2, '|').all(is_name) {
        let message = format!("`{command}` is no command");
        return Err(Unfit::new("commands", message, "write it like `get`, or `config|get`"));
    }
    let name = command.split('|').next().unwrap_or(command).to_ascii_lowercase();
    if OUTLIVING.contains(&name.as_str()) {
        let message = format!("what `{command}` does may outlive the credential that did it");
        return Err(Unfit::new("commands", message, "leave it out: a run has no use for it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_another_rule_is_a_pattern_or_a_command() {
        for fine in ["orders:*", "%R~orders:*", "%W~out", "%RW~a", "*", "a|b", "[ab]*", "é"] {
            assert_eq!(fit_pattern(fine), Ok(()), "{fine}");
        }
        for bad in [
            "",
            "%R~",
            "%X~a",
            "a b",
            "a\tb",
            "a\n+@all",
            "~*",
            "+@all",
            "&*",
            ">pw",
            "#00",
            "(~* +@all)",
            "%R~ +get",
            "%R~+get",
        ] {
            assert!(fit_pattern(bad).is_err(), "{bad}");
        }
        for fine in ["get", "GET", "client|id", "json.get", "xread"] {
            assert_eq!(fit_command(fine), Ok(()), "{fine}");
        }
        for bad in [
            "",
            "@all",
            "@read",
            "get set",
            "+get",
            "-get",
            "get|",
            "|get",
            "a|b|c",
            "acl|setuser",
            "ACL",
            "Config",
        ] {
            assert!(fit_command(bad).is_err(), "{bad}");
        }
    }
}
