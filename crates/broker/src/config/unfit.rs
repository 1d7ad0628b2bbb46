//! What makes an issuer's table unfit, beyond its shape: seen when the file is read, before anybody asks.

use std::net::IpAddr;
use std::time::Duration;

use super::{IssuerConfig, Kind, LONGEST_TOKEN};

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
            Kind::Postgres { .. } | Kind::Exec { .. } | Kind::Static => Ok(()),
            Kind::Redis { keys, commands } => {
                keys.iter().try_for_each(|key| fit_pattern(key))?;
                commands.iter().try_for_each(|command| fit_command(command))
            }
            Kind::Ssh { principals, commands, sources, .. } => {
                principals.iter().try_for_each(|principal| fit_word("principals", principal))?;
                commands.iter().try_for_each(|command| fit_word("commands", command))?;
                sources.iter().try_for_each(|source| fit_network(source))
            }
            Kind::Registry { repositories, actions, .. } => {
                repositories.iter().try_for_each(|name| fit_repository(name))?;
                actions.iter().try_for_each(|action| fit_action(action))?;
                fit_time_of_a_token(self.max_ttl)
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

/// Refuses what a certificate would take for everybody or everything, and what ends a line.
fn fit_word(key: &'static str, word: &str) -> Result<(), Unfit> {
    if word.trim().is_empty() || word.contains(char::is_control) {
        let message = format!("`{}` is nothing that a certificate could be for", word.escape_default());
        return Err(Unfit::new(key, message, "leave it out, or write all of it in one line"));
    }
    Ok(())
}

/// Refuses what is no address and no network: a server would refuse the whole certificate.
fn fit_network(network: &str) -> Result<(), Unfit> {
    let (address, bits) = network.split_once('/').map_or((network, None), |(ip, bits)| (ip, Some(bits)));
    let most = address.parse().map(|ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 });
    let is_fit =
        most.is_ok_and(|most| bits.is_none_or(|bits| bits.parse().is_ok_and(|bits: u8| bits <= most)));
    if is_fit {
        return Ok(());
    }
    let message = format!("`{network}` is no address and no network");
    Err(Unfit::new("sources", message, "write it like `10.0.0.0/8`"))
}

/// Refuses what is no repository's whole name. Source: Distribution, `reference/regexp.go`, "path-component".
fn fit_repository(name: &str) -> Result<(), Unfit> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_component = |part: &str| {
        let (first, last) = (part.bytes().next(), part.bytes().next_back());
        first.is_some_and(is_inner)
            && last.is_some_and(is_inner)
            && part.bytes().all(|byte| is_inner(byte) || b"._-".contains(&byte))
    };
    if name.split('/').all(is_component) {
        return Ok(());
    }
    let message = format!("`{name}` is no repository's name");
    Err(Unfit::new("repositories", message, "write the whole name in small letters, like `shop/app`"))
}

fn fit_action(action: &str) -> Result<(), Unfit> {
    if ["pull", "push", "delete"].contains(&action) {
        return Ok(());
    }
    Err(Unfit::new("actions", format!("a registry knows no `{action}`"), "it knows pull, push and delete"))
}

/// Refuses what would keep a token alive for long that nothing can revoke.
fn fit_time_of_a_token(most: Option<Duration>) -> Result<(), Unfit> {
    if most.is_none_or(|most| most <= LONGEST_TOKEN) {
        return Ok(());
    }
    let message = "a token of a registry can't be revoked, so it may live 5 minutes at most".to_owned();
    Err(Unfit::new("max_ttl", message, "write `5m` or less, or leave it out, which means 5 minutes"))
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

    #[test]
    fn a_certificate_is_for_somebody_and_from_networks() {
        for fine in ["10.0.0.0/8", "10.1.2.3", "::1", "fd00::/8", "0.0.0.0/0"] {
            assert_eq!(fit_network(fine), Ok(()), "{fine}");
        }
        for bad in [
            "",
            "10.0.0.0/33",
            "::/129",
            "build.internal",
            "10.0.0.0/",
            "10.0.0.0/8,0.0.0.0/0",
            "!10.0.0.1",
            "10.*",
        ] {
            assert!(fit_network(bad).is_err(), "{bad}");
        }
        assert_eq!(fit_word("commands", "/usr/local/bin/deploy --fast"), Ok(()));
        for bad in ["", " ", "a\nb", "a\0"] {
            assert!(fit_word("principals", bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_token_is_for_whole_names_and_known_actions_and_short() {
        for fine in ["app", "shop/app", "a.b/c_d-e", "0/1"] {
            assert_eq!(fit_repository(fine), Ok(()), "{fine}");
        }
        for bad in
            ["", "shop/*", "shop/", "/app", "Shop/app", "shop//app", "shop/.app", "shop app", "shop:latest"]
        {
            assert!(fit_repository(bad).is_err(), "{bad}");
        }
        assert!(fit_action("pull").is_ok() && fit_action("*").is_err());
        for (most, is_fit) in [(None, true), (Some(5), true), (Some(300), true), (Some(301), false)] {
            assert_eq!(fit_time_of_a_token(most.map(Duration::from_secs)).is_ok(), is_fit, "{most:?}");
        }
    }
}
