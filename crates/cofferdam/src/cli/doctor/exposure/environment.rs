//! Secrets in the environment: by the variable's name, and by the shape of its value.
//!
//! Values are looked at here and nowhere else, and only the kind that they are comes out.

use std::path::Path;

use cofferdam_core::capability::Capability;

use super::findings::{Finding, Group, Kind, Scope};
use super::surroundings::Surroundings;

/// A run starts with an empty environment. That of other processes is a file below `/proc`, and so it
/// takes this capability to keep the rest of them out of reach.
const HIDDEN_BY: &[Capability] = &[Capability::Files];

/// A token that is told by how it begins.
struct Shape {
    kind: Kind,
    /// Its first letters.
    prefixes: &'static [&'static str],
    /// How many letters, digits, `-`, `_`, `.` and `=` follow at least.
    rest: usize,
    /// Whether one of them has to be a digit: a short beginning is that of words, too.
    digit: bool,
}

impl Shape {
    /// Of a beginning that no other word has.
    const fn of_letters(self) -> Self {
        Shape { digit: false, ..self }
    }
}

const fn shape(
    name: &'static str,
    what: &'static str,
    why: &'static str,
    prefixes: &'static [&'static str],
    rest: usize,
) -> Shape {
    Shape { kind: Kind::new(name, what, why), prefixes, rest, digit: true }
}

/// Every shape. The numbers are below what the issuers document, so that shorter ones count too.
#[rustfmt::skip]
const SHAPES: &[Shape] = &[
    shape("github-token", "GitHub token", "acts as you on GitHub", &["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"], 16),
    shape("gitlab-token", "GitLab token", "acts as you on GitLab", &["glpat-", "glrt-", "gldt-", "glcbt-"], 16),
    shape("anthropic-key", "Anthropic key", "spends your Anthropic budget", &["sk-ant-"], 16),
    shape("stripe-key", "Stripe key", "moves money", &["sk_live_", "rk_live_", "sk_test_", "rk_test_", "whsec_"], 8).of_letters(),
    shape("openai-key", "key of a model provider", "spends your model budget", &["sk-"], 20),
    shape("slack-token", "Slack token", "reads and writes in Slack", &["xoxb-", "xoxp-", "xoxa-", "xoxs-", "xoxr-", "xapp-"], 10),
    shape("aws-access-key", "AWS key", "acts as you in AWS", &["AKIA", "ASIA"], 16),
    shape("google-key", "Google API key", "spends your Google budget", &["AIza"], 30),
    shape("google-access-token", "Google access token", "acts as you in Google Cloud", &["ya29."], 20),
    shape("huggingface-token", "Hugging Face token", "acts as you on Hugging Face", &["hf_"], 16),
    shape("npm-token", "npm token", "publishes packages as you", &["npm_"], 30),
    shape("pypi-token", "Python package index token", "publishes packages as you", &["pypi-"], 16),
    shape("docker-token", "Docker Hub token", "pushes images as you", &["dckr_pat_", "dckr_oat_"], 16),
    shape("digitalocean-token", "DigitalOcean token", "acts as you in DigitalOcean", &["dop_v1_", "doo_v1_"], 16),
    shape("sendgrid-key", "SendGrid key", "sends mail as you", &["SG."], 30),
    shape("vault-token", "Vault token", "reads what you may read in Vault", &["hvs.", "hvb."], 16),
    shape("age-key", "age key", "decrypts the team's secrets", &["AGE-SECRET-KEY-1"], 20),
];

const PRIVATE_KEY: Kind = Kind::new("private-key", "private key", "logs in or signs as you");
const WEB_TOKEN: Kind = Kind::new("web-token", "web token (JWT)", "is you for whoever accepts it");
const URL: Kind = Kind::new("url-with-password", "address with a password", "opens what it leads to");
const AWS: Kind = Kind::new("aws-variable", "AWS credential", "acts as you in AWS");
const DATABASE: Kind = Kind::new("database-address", "address of a database", "opens your database");
const TRACKER: Kind =
    Kind::new("error-tracker-address", "address of an error tracker", "sends reports in your project's name");
const WEBHOOK: Kind = Kind::new("webhook", "webhook", "posts in your name: its address is the secret");
const NAMED: Kind =
    Kind::new("named-like-a-secret", "a secret, by its name", "is used as you wherever it is accepted");

/// Names that end as secrets do and are meant for everybody.
const PUBLIC: &[&str] = &["GPG_KEY", "NEXT_PUBLIC_", "PUBLIC_KEY", "PUBLISHABLE"];

/// Ends of names that say secret.
const SUFFIXES: &[&str] = &[
    "_TOKEN",
    "_SECRET",
    "_KEY",
    "_PASSWORD",
    "_PASSWD",
    "_PASSPHRASE",
    "_PWD",
    "_PAT",
    "_CREDENTIALS",
    "_CREDENTIAL",
    "_APIKEY",
    "_SECRETS",
    "_COOKIE",
    "_AUTH",
    "_PASS",
    "_KEY_BASE64",
    "_SECRET_ID",
];

/// What may follow them: which of several environments it is for.
const STAGES: &[&str] = &["_LIVE", "_TEST", "_PROD", "_PRODUCTION", "_STAGING", "_DEV"];

/// Whole names that say secret. The session of a password manager opens it; other names with `SESSION`
/// are of a desktop and hide nothing.
const NAMES: &[&str] = &[
    "APIKEY",
    "API_KEY",
    "AUTH",
    "AUTHORIZATION",
    "BW_SESSION",
    "COOKIE",
    "CREDENTIALS",
    "MYSQL_PWD",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PGPASSWORD",
    "PRIVATE_KEY",
    "REDISCLI_AUTH",
    "SECRET",
    "SSHPASS",
    "TOKEN",
    "VAULT_TOKEN",
];

/// Values that switch something and hide nothing.
const SWITCHES: &[&str] = &["0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"];

/// Every variable that holds a secret, by name.
pub(super) fn look(around: &Surroundings) -> Vec<Finding> {
    let mut found: Vec<Finding> = around
        .environment
        .iter()
        .filter_map(|(name, value)| {
            let name = name.to_string_lossy();
            let kind = kind(&name, &value.to_string_lossy())?;
            Some(Finding::new(Group::Environment, Scope::Person, kind, &name, HIDDEN_BY))
        })
        .collect();
    found.sort_by(|one, other| (one.kind, &one.place).cmp(&(other.kind, &other.place)));
    found
}

/// What kind of secret a variable holds. The shape of its value says more than its name.
pub(super) fn kind(name: &str, value: &str) -> Option<Kind> {
    let value = value.trim();
    if value.is_empty() || SWITCHES.contains(&value.to_ascii_lowercase().as_str()) {
        return None;
    }
    kind_by_value(value).or_else(|| kind_by_name(&name.to_ascii_uppercase(), value))
}

/// The same by the value alone.
pub(super) fn kind_by_value(value: &str) -> Option<Kind> {
    if value.contains("PRIVATE KEY-----") {
        return Some(PRIVATE_KEY);
    }
    let in_word = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let words = || value.split(|letter| !in_word(letter)).filter(|word| !word.is_empty());
    let fits = |shape: &&Shape| {
        words().any(|word| {
            let rests = shape.prefixes.iter().filter_map(|prefix| word.strip_prefix(prefix));
            rests.into_iter().any(|rest| {
                rest.len() >= shape.rest && (!shape.digit || rest.bytes().any(|it| it.is_ascii_digit()))
            })
        })
    };
    let by_shape = SHAPES.iter().find(fits).map(|shape| shape.kind);
    by_shape
        .or_else(|| words().any(is_web_token).then_some(WEB_TOKEN))
        .or_else(|| is_webhook(value).then_some(WEBHOOK))
        .or_else(|| url_with_password(value).then_some(URL))
}

/// Three parts of base64url with dots between, of which the first two are JSON objects. Source: RFC
/// 7519; `eyJ` is how `{"` looks in base64.
fn is_web_token(word: &str) -> bool {
    let parts: Vec<_> = word.split('.').collect();
    matches!(parts[..], [header, claims, _] if header.starts_with("eyJ") && claims.starts_with("eyJ"))
}

fn is_webhook(value: &str) -> bool {
    ["hooks.slack.com/services/", "discord.com/api/webhooks/", "webhook.office.com/"]
        .iter()
        .any(|place| value.contains(place))
}

fn kind_by_name(name: &str, value: &str) -> Option<Kind> {
    match name {
        "AWS_ACCESS_KEY_ID" | "AWS_SECRET_ACCESS_KEY" | "AWS_SESSION_TOKEN" | "AWS_SECURITY_TOKEN" => {
            return Some(AWS);
        }
        "DATABASE_URL" | "MONGODB_URI" | "MONGO_URL" | "REDIS_URL" | "POSTGRES_URL" | "AMQP_URL" => {
            return Some(DATABASE);
        }
        _ => {}
    }
    if name.ends_with("SENTRY_DSN") || (name == "DSN" && value.contains("sentry")) {
        return Some(TRACKER);
    }
    if name == "DSN"
        || name.ends_with("_DSN")
        || name.ends_with("_CONNECTION_STRING")
        || name.ends_with("_DATABASE_URL")
    {
        return Some(DATABASE);
    }
    if name.contains("_WEBHOOK") || name.starts_with("WEBHOOK") {
        return Some(WEBHOOK);
    }
    // The path of a key is no key; the file is found as a file. Base64 may begin with a slash too.
    let path = value.starts_with('/') && Path::new(value).exists();
    (is_secret_name(name) && !path).then_some(NAMED)
}

/// Whether a name, in capitals, says that its value is a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let public = PUBLIC.iter().any(|part| name.contains(part));
    let plain = STAGES.iter().find_map(|stage| name.strip_suffix(stage)).unwrap_or(name);
    let named = NAMES.contains(&plain) || plain == "STRIPE_SK" || name.starts_with("OP_SESSION_");
    !public && (named || SUFFIXES.iter().any(|suffix| plain.ends_with(suffix)))
}

/// Whether a text has an address with a user and a password: `scheme://user:password@host`. A
/// variable in the place of the password, `${NAME}`, is none.
pub(super) fn url_with_password(text: &str) -> bool {
    text.split("://").skip(1).any(|after| {
        let end = after.find(|letter: char| "/?#\"'<>`".contains(letter) || letter.is_whitespace());
        let authority = &after[..end.unwrap_or(after.len())];
        let password = authority.rsplit_once('@').and_then(|(user, _)| user.split_once(':'));
        password.is_some_and(|(_, password)| !password.is_empty() && !password.starts_with('$'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(name: &str, value: &str) -> Option<&'static str> {
        kind(name, value).map(|kind| kind.name)
    }

    #[test]
    fn a_value_of_a_known_shape_is_a_secret_whatever_its_name() {
        let digits = "0123456789abcdefABCDEF0123456789abcdefAB";
        for (start, kind) in [
            ("ghp_", "github-token"),
            ("github_pat_", "github-token"),
            ("sk-", "openai-key"),
            ("sk-ant-", "anthropic-key"),
            ("xoxb-", "slack-token"),
            ("glpat-", "gitlab-token"),
            ("AKIA", "aws-access-key"),
            ("sk_live_", "stripe-key"),
        ] {
            assert_eq!(name_of("X", &format!("{start}{digits}")), Some(kind));
            assert_eq!(name_of("X", &format!("--header 'Bearer {start}{digits}'")), Some(kind), "{start}");
            assert_eq!(name_of("X", start), None, "{start} alone is no token");
        }
        assert_eq!(name_of("PAYMENTS", "sk_live_abcdefghijkl"), Some("stripe-key"), "letters are enough");
        assert_eq!(name_of("X", "eyJhbGciOiJub25lIn0.eyJzdWIiOiIxIn0.sig"), Some("web-token"));
        assert_eq!(name_of("X", "-----BEGIN RSA PRIVATE KEY-----\nMIIE"), Some("private-key"));
        assert_eq!(name_of("X", "https://me:pw1@host/path"), Some("url-with-password"));
    }

    #[test]
    fn a_name_that_says_secret_is_one() {
        for name in ["MY_TOKEN", "a_secret", "STRIPE_KEY", "DB_PASSWORD", "PGPASSWORD"] {
            assert_eq!(name_of(name, "x9"), Some("named-like-a-secret"), "{name}");
        }
        assert_eq!(name_of("MY_KEY", "/no/such+file="), Some("named-like-a-secret"), "base64 has slashes");
        assert_eq!(name_of("DATABASE_URL", "x9"), Some("database-address"));
        assert_eq!(name_of("DSN", "x9"), Some("database-address"));
        assert_eq!(name_of("DB_DSN", "x9"), Some("database-address"));
        assert_eq!(name_of("SENTRY_DSN", "x9"), Some("error-tracker-address"));
        assert_eq!(name_of("DSN", "https://x9@o1.ingest.sentry.io/1"), Some("error-tracker-address"));
        assert_eq!(name_of("STRIPE_SECRET_KEY_LIVE", "x9"), Some("named-like-a-secret"));
        assert_eq!(name_of("OP_SESSION_ACME", "x9"), Some("named-like-a-secret"));
        assert_eq!(name_of("SLACK_WEBHOOK_URL", "x9"), Some("webhook"));
        assert_eq!(name_of("AWS_SECRET_ACCESS_KEY", "x9"), Some("aws-variable"));
    }

    #[test]
    fn what_only_looks_alike_is_no_secret() {
        for (name, value) in [
            ("PATH", "/usr/bin:/bin"),
            ("AWS_REGION", "eu-west-1"),
            ("DISABLE_TOKEN", "1"),
            ("MY_TOKEN", ""),
            ("SSH_PUBLIC_KEY", "ssh-ed25519 AAAA"),
            ("TLS_KEY", "/etc/passwd"),
            ("STRIPE_PUBLISHABLE_KEY", "pk_live_1"),
            ("HOMEPAGE", "https://example.com/a@b:c"),
            ("PROXY", "http://user@host:80"),
            ("REMOTE", "https://user:${TOKEN}@host"),
            ("LIBRARY", "sk-learn-is-a-library-of-python"),
            ("KEYBOARD", "us"),
            ("DESKTOP_SESSION", "plasma"),
            ("XDG_SESSION_ID", "3"),
            ("STRIPE_PUBLISHABLE_KEY_LIVE", "pk_live_1"),
        ] {
            assert_eq!(name_of(name, value), None, "{name}={value}");
        }
    }
}
