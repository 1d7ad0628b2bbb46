//! What a program gets of a credential: variables, each a template in which `{part}` stands for a part of it.

use cofferdam_core::secret::Secret;

use super::Refused;
use crate::config::IssuerConfig;
use crate::control::{Ask, Refusal};
use crate::issuer::Minted;

/// The parts that each credential has, whatever mints it: those of its first host.
const ALWAYS: [&str; 2] = ["host", "port"];

/// The first `{word}` of a template that is no part. Braces around anything but one word are the template's own.
fn unknown_part<'a>(template: &'a str, parts: &[&str]) -> Option<&'a str> {
    let words = template.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    let mut words = words.filter(|word| is_word(word));
    words.find(|word| !parts.contains(word) && !ALWAYS.contains(word))
}

/// What may stand in a template, as a refusal says it.
fn all_parts(parts: &[&str]) -> String {
    let shown = parts.iter().chain(&ALWAYS).map(|part| format!("{{{part}}}"));
    shown.collect::<Vec<_>>().join(", ")
}

fn is_word(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

/// Whether each part that is to be delivered is one that its issuer mints.
pub(super) fn check_templates(ask: &Ask, config: &IssuerConfig) -> Result<(), Refused> {
    let parts = config.kind.parts();
    for (variable, template) in &ask.deliver {
        if let Some(unknown) = unknown_part(template, parts) {
            return Err(Refused {
                kind: Refusal::Request,
                message: format!(
                    "`{variable}` is to have the part `{{{unknown}}}`, which no credential of `{}` has",
                    ask.issuer
                ),
                fix: format!("its parts are {}", all_parts(parts)),
            });
        }
    }
    Ok(())
}

/// The variables of a credential: templates, with its parts in place of `{part}`. What is no part stays as it stands.
pub(super) fn deliveries(ask: &Ask, config: &IssuerConfig, minted: Option<&Minted>) -> Vec<(String, Secret)> {
    let usual = config.kind.usual_variables().iter().map(|(name, value)| ((*name).into(), (*value).into()));
    let mut wanted: Vec<(String, String)> =
        if ask.deliver.is_empty() { usual.collect() } else { ask.deliver.clone() };
    if wanted.is_empty() {
        wanted.push((token_variable(&ask.name), "{token}".to_owned())); // clients have no name of their own for it
    }
    let (host, port) = config.hosts.first().and_then(|host| host.rsplit_once(':')).unwrap_or_default();
    let part = |name: &str| match name {
        "host" => Some(host.as_bytes()),
        "port" => Some(port.as_bytes()),
        name => minted?.parts.get(name).map(Secret::expose),
    };
    wanted.into_iter().map(|(name, template)| (name, filled(&template, part))).collect()
}

/// Where a program finds a token that nobody named a variable for: the credential's name and `_TOKEN`.
fn token_variable(name: &str) -> String {
    let letter =
        |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
    name.chars().map(letter).chain("_TOKEN".chars()).collect()
}

fn filled<'a>(template: &str, part: impl Fn(&str) -> Option<&'a [u8]>) -> Secret {
    const LONGEST: usize = 64 << 10; // so that it never grows, and leaves no copy
    let (mut value, mut rest) = (Vec::with_capacity(LONGEST.max(template.len())), template);
    while let Some(at) = rest.find('{') {
        value.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        let end = rest.find('}');
        match end.and_then(|end| Some((end, part(&rest[1..end])?))) {
            Some((end, bytes)) => {
                value.extend_from_slice(bytes);
                rest = &rest[end + 1..];
            }
            None => {
                value.push(b'{');
                rest = &rest[1..];
            }
        }
    }
    value.extend_from_slice(rest.as_bytes());
    Secret::new(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_in_braces_is_a_part_or_a_slip() {
        let unknown = |template| unknown_part(template, &["user", "password"]);
        assert_eq!(unknown("{user}:{pasword}@{host}"), Some("pasword"));
        assert_eq!(unknown("{{user}{nobody}"), Some("nobody"));
        assert_eq!(unknown("{User}"), Some("User"));
        for fine in
            ["{user}:{password}@{host}:{port}", "{\"json\": {user}}", "{}", "{", "{a b}", "{user", "}{"]
        {
            assert_eq!(unknown(fine), None, "{fine}");
        }
        assert_eq!(all_parts(&["token"]), "{token}, {host}, {port}");
    }

    #[test]
    fn templates_are_filled_with_what_is_a_part_and_keep_the_rest() {
        let part = |name: &str| match name {
            "user" => Some(&b"u"[..]),
            "password" => Some(&b"{user}"[..]),
            _ => None,
        };
        let said = |template: &str| String::from_utf8(filled(template, part).expose().to_vec()).unwrap();
        assert_eq!(said("a{user}b{password}c"), "aub{user}c", "what was put in is not read again");
        assert_eq!(said("{"), "{");
        assert_eq!(said("{\"json\": {user}}"), "{\"json\": u}");
        assert_eq!(said("{nobody}"), "{nobody}");
    }

    #[test]
    fn a_token_has_a_variable_by_its_name() {
        assert_eq!(token_variable("vault.shop-1"), "VAULT_SHOP_1_TOKEN");
    }
}
