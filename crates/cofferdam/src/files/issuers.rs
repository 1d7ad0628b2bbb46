//! `issuers.toml`: the operator's issuers, where their roots are, and their ceilings. The broker reads it, and `doctor` to
//! say what is wrong with it; and only if nobody else can.

mod tables;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cofferdam_broker::config::{Inject, IssuerConfig, Kind, Root};
use cofferdam_broker::process::Unserved;
use cofferdam_core::egress::Authority;
use cofferdam_sys::process;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::error::{FileError, Source};
use super::text;
use super::words::{At, Inject as InjectWord, Time};
use tables::{RedisTable, RegistryTable, SshTable};

/// The whole file: issuers by kind, and by the name that the operator gives them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct IssuersFile {
    #[serde(default)]
    postgres: BTreeMap<String, PostgresTable>,
    #[serde(default)]
    exec: BTreeMap<String, ExecTable>,
    #[serde(default)]
    redis: BTreeMap<String, RedisTable>,
    #[serde(default)]
    ssh: BTreeMap<String, SshTable>,
    #[serde(default)]
    registry: BTreeMap<String, RegistryTable>,
    #[serde(default, rename = "static")]
    standing: BTreeMap<String, StaticTable>,
}

/// Roles of PostgreSQL.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct PostgresTable {
    root: RootTable,
    hosts: Vec<At<String>>,
    templates: Vec<String>,
    databases: Vec<String>,
    max_ttl: Option<Time>,
}

/// What a helper prints.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct ExecTable {
    root: RootTable,
    hosts: Vec<At<String>>,
    command: Vec<String>,
    #[serde(default)]
    scope: BTreeMap<String, Vec<String>>,
    max_ttl: Option<Time>,
    inject: Option<At<InjectWord>>,
    header: Option<At<String>>,
    user: Option<At<String>>,
}

/// A secret that outlives runs. It stands in requests, and no program gets it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct StaticTable {
    root: RootTable,
    hosts: Vec<At<String>>,
    max_ttl: Option<Time>,
    inject: At<InjectWord>,
    header: Option<At<String>>,
    user: Option<At<String>>,
}

/// Where a root is: one of the three.
#[derive(Debug)]
enum RootTable {
    Env(String),
    File(At<PathBuf>),
    Command(Vec<String>),
}

/// What is said of a root that is none of them. Never what stands there: some write the secret itself.
const NO_ROOT: &str =
    "`root` is one of { env = \"NAME\" }, { file = \"/path\" } and { command = [\"program\"] }";

/// The same, as the file has it.
#[derive(Deserialize)]
struct RootKeys {
    env: Option<String>,
    file: Option<At<PathBuf>>,
    command: Option<Vec<String>>,
}

impl<'de> Deserialize<'de> for RootTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wrong = |_| D::Error::custom(NO_ROOT);
        let value = deserializer.deserialize_map(RootVisitor).map_err(wrong)?;
        match value {
            RootKeys { env: Some(name), file: None, command: None } => Ok(RootTable::Env(name)),
            RootKeys { env: None, file: Some(path), command: None } => Ok(RootTable::File(path)),
            RootKeys { env: None, file: None, command: Some(words) } => Ok(RootTable::Command(words)),
            _ => Err(D::Error::custom(NO_ROOT)),
        }
    }
}

struct RootVisitor;

impl<'de> Visitor<'de> for RootVisitor {
    type Value = RootKeys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NO_ROOT)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RootKeys, A::Error> {
        RootKeys::deserialize(MapAccessDeserializer::new(map))
    }
}

/// Reads the first of these files that is there.
///
/// # Errors
///
/// [`Unserved`] where none is, or it is wrong, or somebody else could read it.
pub(crate) fn load_issuers(paths: &[PathBuf]) -> Result<Vec<IssuerConfig>, Unserved> {
    for path in paths {
        match text::read(path) {
            Ok(text) => {
                refuse_readable(path)?;
                return parse(&text.text, &text.source).map_err(|error| unserved(&error));
            }
            Err(unreadable) if unreadable.is_absent(path) => {}
            Err(unreadable) => return Err(unserved(&FileError::from(unreadable))),
        }
    }
    let places: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    Err(Unserved {
        message: "there is no issuers.toml, so nobody mints credentials here".to_owned(),
        fix: format!("the operator writes it as {}", places.join(" or ")),
    })
}

fn unserved(error: &FileError) -> Unserved {
    // Never the text itself: some write a secret where the place of one belongs.
    Unserved { message: error.summary(), fix: error.fix().to_owned() }
}

/// What mints is nobody else's to read, and what says so nobody else's to write.
fn refuse_readable(path: &Path) -> Result<(), Unserved> {
    let wrong = |message: String| Unserved {
        message,
        fix: format!("chmod 600 {0}; chown it to yourself", path.display()),
    };
    let found = fs::metadata(path).map_err(|error| wrong(format!("{}: {error}", path.display())))?;
    let owner = process::effective_user();
    match (found.uid() == owner || found.uid() == 0, found.mode() & 0o077) {
        (true, 0) => Ok(()),
        (false, _) => Err(wrong(format!("{} belongs to another user", path.display()))),
        (true, _) => Err(wrong(format!("{} can be read or written by others", path.display()))),
    }
}

fn parse(text: &str, source: &Source) -> Result<Vec<IssuerConfig>, FileError> {
    let file: IssuersFile = toml::from_str(text).map_err(|error| source.toml_error(&error))?;
    let mut issuers = vec![];
    for (name, table) in file.postgres {
        let kind = Kind::Postgres { templates: table.templates, databases: table.databases };
        issuers.push(issuer(&name, kind, table.root, &table.hosts, table.max_ttl, source)?);
    }
    for (name, table) in file.exec {
        let kind = Kind::Exec { command: table.command, scope: table.scope };
        let inject = place(table.inject.as_ref(), table.header.as_ref(), table.user.as_ref(), source)?;
        let issuer = issuer(&name, kind, table.root, &table.hosts, table.max_ttl, source)?;
        issuers.push(IssuerConfig { inject, ..issuer });
    }
    for (name, table) in file.standing {
        let inject = place(Some(&table.inject), table.header.as_ref(), table.user.as_ref(), source)?;
        let issuer = issuer(&name, Kind::Static, table.root, &table.hosts, table.max_ttl, source)?;
        issuers.push(IssuerConfig { inject, ..issuer });
    }
    for (name, table) in file.redis {
        issuers.push(table.issuer(&name, source)?);
    }
    for (name, table) in file.ssh {
        issuers.push(table.issuer(&name, source)?);
    }
    for (name, table) in file.registry {
        issuers.push(table.issuer(&name, source)?);
    }
    Ok(issuers)
}

/// Where an issuer's credentials stand in requests.
fn place(
    inject: Option<&At<InjectWord>>,
    header: Option<&At<String>>,
    user: Option<&At<String>>,
    source: &Source,
) -> Result<Option<Inject>, FileError> {
    let needless = |at: &At<String>, what: &str, inject: &str| {
        let message = format!("`{what}` is for `inject = \"{inject}\"` alone");
        source.error(&at.span, &message, "nothing uses it", "remove it, or inject so")
    };
    let word = inject.map(|inject| &inject.value);
    match (header, user) {
        (Some(at), _) if word != Some(&InjectWord::Header) => return Err(needless(at, "header", "header")),
        (_, Some(at)) if word != Some(&InjectWord::Basic) => return Err(needless(at, "user", "basic")),
        _ => {}
    }
    let Some(inject) = inject else { return Ok(None) };
    Ok(Some(match (&inject.value, header) {
        (InjectWord::Bearer, _) => Inject::Bearer,
        (InjectWord::Basic, _) => Inject::Basic { user: user.map(|user| user.value.clone()) },
        (InjectWord::Header, Some(At { value, .. })) if is_header(value) => {
            Inject::Header(value.to_ascii_lowercase())
        }
        (InjectWord::Header, Some(At { span, .. })) => {
            return Err(source.error(span, "this names no header", "no header", "write it like `X-Api-Key`"));
        }
        (InjectWord::Header, None) => {
            let message = "nothing says in which header it stands";
            return Err(source.error(&inject.span, message, "which one?", "add `header = \"X-Api-Key\"`"));
        }
    }))
}

/// A token of RFC 9110, section 5.6.2, that isn't about the connection or the message.
fn is_header(name: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    const TAKEN: [&str; 8] = [
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "te",
        "transfer-encoding",
        "upgrade",
    ];
    !name.is_empty() && name.bytes().all(is_token) && !TAKEN.contains(&name.to_ascii_lowercase().as_str())
}

/// Letters, digits and underscores: POSIX, Base Definitions, section 8.1.
fn is_variable(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    !name.is_empty() && !name.starts_with(|first: char| first.is_ascii_digit()) && name.bytes().all(is_letter)
}

fn issuer(
    name: &str,
    kind: Kind,
    root: RootTable,
    hosts: &[At<String>],
    max_ttl: Option<Time>,
    source: &Source,
) -> Result<IssuerConfig, FileError> {
    for host in hosts {
        if let Err(bad) = Authority::parse(host.value.as_bytes()) {
            let message = format!("`{}` is no host with a port: {bad}", host.value);
            return Err(source.error(&host.span, &message, "this host", "write it like `db.internal:5432`"));
        }
    }
    let root = match root {
        RootTable::Env(variable) if !is_variable(&variable) => {
            let message = format!("the root of `{}.{name}` is in no variable that could be set", kind.name());
            let help =
                "name a variable in `env`, like SHOP_MINTER; the secret itself has no place in this file";
            return Err(source.error(&(0..0), &message, "", help));
        }
        RootTable::Env(variable) => Root::Env(variable),
        RootTable::File(path) if !path.value.is_absolute() => {
            // Not what stands there: some write the secret itself.
            let message = format!("the root of `{}.{name}` is in no absolute path", kind.name());
            return Err(source.error(&path.span, &message, "this file", "write where it is from / on"));
        }
        RootTable::File(path) => Root::File(path.value),
        RootTable::Command(words) => Root::Command(words),
    };
    let hosts = hosts.iter().map(|host| host.value.clone()).collect();
    let max_ttl: Option<Duration> = max_ttl.map(|time| time.0);
    Ok(IssuerConfig { name: format!("{}.{name}", kind.name()), root, hosts, max_ttl, inject: None, kind })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const FILE: &str = r#"
        [postgres.main]
        root = { env = "ADMIN" }
        hosts = ["db.internal:5432"]
        templates = ["tpl_orders_ro"]
        databases = ["shop"]
        max_ttl = "15m"

        [exec.vault]
        root = { command = ["pass", "show", "vault"] }
        hosts = ["api.internal:443"]
        command = ["/usr/local/bin/mint"]
        scope = { path = ["a", "b"] }

        [redis.main]
        root = { env = "REDIS_MINTER" }
        hosts = ["cache.internal:6379"]
        keys = ["orders:*", "%R~prices:*"]
        commands = ["get", "set"]

        [ssh.build]
        root = { file = "/etc/cofferdam/ssh_ca" }
        hosts = ["build.internal:22"]
        principals = ["deploy"]
        commands = ["/usr/local/bin/deploy"]
        sources = ["10.0.0.0/8"]
        krl = ["/usr/local/bin/revoke"]
        test = ["/usr/local/bin/is-taken"]

        [registry.main]
        root = { file = "/etc/cofferdam/registry.pem" }
        hosts = ["registry.internal:443"]
        issuer = "cofferdam"
        service = "registry.internal"
        repositories = ["shop/app"]
        actions = ["pull"]
    "#;

    #[test]
    fn each_issuer_has_its_kind_in_its_name() {
        let issuers = parse(FILE, &Source::new("issuers.toml", FILE)).unwrap();
        let names: Vec<_> = issuers.iter().map(|issuer| issuer.name.as_str()).collect();
        assert_eq!(names, ["postgres.main", "exec.vault", "redis.main", "ssh.build", "registry.main"]);
        assert_eq!(issuers[0].max_ttl, Some(Duration::from_secs(900)));
        assert_eq!(issuers[4].max_ttl, Some(Duration::from_secs(300)), "a registry's, where none is said");
        assert_eq!(issuers[1].root, Root::Command(["pass", "show", "vault"].map(str::to_owned).into()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, says) in [
            ("[postgres.a]\nroot = { env = \"A\" }\n", "hosts"),
            ("[oracle.a]\n", "oracle"),
            (&FILE.replace("db.internal:5432", "db.internal"), "no host with a port"),
            (&FILE.replace("env = \"ADMIN\"", "secret = \"hunter2\""), "root"),
            (&FILE.replace("\"get\"", "\"@all\""), "`@all` is a category"),
            (&FILE.replace("orders:*", "a +@all"), "no pattern of keys"),
            (&FILE.replace("10.0.0.0/8", "10.0.0.0/80"), "no network"),
            (&FILE.replace("[\"deploy\"]", "[\"\"]"), "nothing that a certificate could be for"),
            (&FILE.replace("test = [\"/usr", "# [\"/usr"), "nobody could see whether a certificate is dead"),
            (&FILE.replace("krl = [\"/usr", "# [\"/usr"), "nothing could be revoked"),
            (&FILE.replace("shop/app", "shop/*"), "no repository's name"),
            (&FILE.replace("[\"pull\"]", "[\"*\"]"), "knows no `*`"),
            (&FILE.replace("[\"pull\"]", "[\"pull\"]\nmax_ttl = \"6m\""), "may live 5 minutes at most"),
            (&FILE.replace("[\"/usr/local/bin/revoke\"]", "[]"), "names no program"),
            (&FILE.replace("env = \"ADMIN\"", "file = \"admin\""), "no absolute path"),
        ] {
            let error = parse(text, &Source::new("issuers.toml", text)).unwrap_err();
            assert!(unserved(&error).message.contains(says), "{}", unserved(&error).message);
        }
    }

    #[test]
    fn a_secret_in_the_place_of_a_root_is_refused_and_not_shown() {
        for root in [
            "\"hunter2-hunter2\"",
            "{ env = \"hunter2-hunter2\" }",
            "{ file = \"hunter2-hunter2\" }",
            "{ secret = \"hunter2-hunter2\" }",
            "[\"hunter2-hunter2\"]",
            "{ env = [\"hunter2-hunter2\"] }",
        ] {
            let text = FILE.replace("{ env = \"ADMIN\" }", root);
            let error = unserved(&parse(&text, &Source::new("issuers.toml", &text)).unwrap_err());
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
            assert!(error.message.contains("root"), "{error:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("issuers.toml");
        fs::write(&path, FILE).unwrap();
        for (mode, is_fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o620, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let loaded = load_issuers(std::slice::from_ref(&path));
            assert_eq!(loaded.is_ok(), is_fine, "{mode:o}: {loaded:?}");
        }
        assert!(load_issuers(&[folder.path().join("none")]).unwrap_err().message.contains("no issuers.toml"));
    }
}
