//! The templates of `deliver`: which `{part}` they name.

/// The parts that each credential has, whatever mints it: those of its first host.
const ALWAYS: [&str; 2] = ["host", "port"];

/// The first `{word}` of a template that is no part. Braces around anything but one word are the template's own.
pub(super) fn unknown_part<'a>(template: &'a str, parts: &[&str]) -> Option<&'a str> {
    let words = template.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0));
    let mut words = words.filter(|word| is_word(word));
    words.find(|word| !parts.contains(word) && !ALWAYS.contains(word))
}

/// What may stand in a template, as a refusal says it.
pub(super) fn all_parts(parts: &[&str]) -> String {
    let shown = parts.iter().chain(&ALWAYS).map(|part| format!("{{{part}}}"));
    shown.collect::<Vec<_>>().join(", ")
}

fn is_word(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
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
}
