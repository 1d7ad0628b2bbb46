//! What the operator's `issuers.toml` says, as values. Whoever reads the file makes them.

mod unfit;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

pub use unfit::Unfit;

use crate::trial::Finding;

/// An issuer: who mints, for which hosts, and how much at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerConfig {
    /// Its name: the kind and what the operator calls it, `postgres.main`.
    pub name: String,
    /// Where the secret is that mints.
    pub root: Root,
    /// The hosts that its credentials are for, with their ports.
    pub hosts: Vec<String>,
    /// How long a credential of it may live; none means as long as a run.
    pub max_ttl: Option<Duration>,
    /// Where its credentials stand in requests; none where programs hold them.
    pub inject: Option<Inject>,
    /// What it mints.
    pub kind: Kind,
}

/// Where in a request a credential stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inject {
    /// In `Authorization`, as RFC 6750 has it.
    Bearer,
    /// In `Authorization`, as the password of RFC 7617.
    Basic {
        /// The user; none for the one that the program names.
        user: Option<String>,
    },
    /// In a header of its own, whose name this is.
    Header(String),
}

impl Inject {
    /// The word for it in files.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Inject::Bearer => "bearer",
            Inject::Basic { .. } => "basic",
            Inject::Header(_) => "header",
        }
    }
}

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// In a variable of the environment that Cofferdam was started with.
    Env(String),
    /// In a file.
    File(PathBuf),
    /// In what a program prints, which is called with these words.
    Command(Vec<String>),
}

impl Root {
    /// Where it is, in words.
    #[must_use]
    pub fn place(&self) -> String {
        match self {
            Root::Env(name) => format!("the variable {name}"),
            Root::File(path) => path.display().to_string(),
            Root::Command(words) => format!("what `{}` prints", words.first().map_or("", String::as_str)),
        }
    }

    /// Looks whether it is where it should be, without reading it.
    ///
    /// # Errors
    ///
    /// A [`Finding`], whose message is a clause about the root.
    pub fn look(&self) -> Result<(), Finding> {
        crate::issuer::root::look(self)
    }
}

/// What an issuer mints, and its ceiling. A request has to name one of each list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Roles of PostgreSQL, each a member of one template.
    Postgres {
        /// Roles that can't log in and have the grants.
        templates: Vec<String>,
        /// Databases to which a role is meant to connect.
        databases: Vec<String>,
    },
    /// What a helper prints: `{"token": …, "expires_at": …, "revoke": […]}`.
    Exec {
        /// The helper, which is called with these words and gets the scope as JSON on standard input.
        command: Vec<String>,
        /// What may be asked for: each field with the values that it may have.
        scope: BTreeMap<String, Vec<String>>,
    },
    /// Users of Redis, by its access control lists.
    Redis {
        /// Patterns of keys, each plain or behind `%R~`, `%W~` or `%RW~`: to read, to write, or both.
        keys: Vec<String>,
        /// Commands, or subcommands like `config|get`; no categories.
        commands: Vec<String>,
    },
    /// User certificates of OpenSSH.
    Ssh {
        /// Whom a certificate may be for: on most servers, whom it logs in.
        principals: Vec<String>,
        /// What may be run with one, whatever is asked for.
        commands: Vec<String>,
        /// The networks from which each is taken; none for any.
        sources: Vec<String>,
        /// How one is ended before it expires; none where it isn't.
        revocation: Option<Revocation>,
    },
    /// Tokens of a registry of images.
    Registry {
        /// Whom the registry trusts, by the name that it has of us (`auth.token.issuer`).
        issuer: String,
        /// What the registry calls itself (`auth.token.service`).
        service: String,
        /// Repositories, by their whole names.
        repositories: Vec<String>,
        /// What may be done with them: `pull`, `push`, `delete`.
        actions: Vec<String>,
    },
    /// A secret that isn't made for a run and outlives it: it is only kept away from programs.
    Static,
}

/// How long a token of a registry may live, since nothing ends it before: five minutes.
pub const LONGEST_TOKEN: Duration = Duration::from_secs(300);

/// The operator's programs that end a certificate. Both get `{"serial": …, "key_id": "…"}` on standard input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Puts it onto the list of revoked keys. Succeeds when every server has that list.
    pub krl: Vec<String>,
    /// Ends with 0 while the servers take it, and with 1 when they don't. Gets the line of the `certificate` too.
    pub test: Vec<String>,
}

impl Kind {
    /// The word before the dot of an issuer's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Kind::Postgres { .. } => "postgres",
            Kind::Exec { .. } => "exec",
            Kind::Redis { .. } => "redis",
            Kind::Ssh { .. } => "ssh",
            Kind::Registry { .. } => "registry",
            Kind::Static => "static",
        }
    }

    /// What a request has to narrow, each with the values that it may have.
    #[must_use]
    pub fn ceiling(&self) -> Vec<(&str, &[String])> {
        match self {
            Kind::Postgres { templates, databases } => {
                vec![("template", templates.as_slice()), ("database", databases.as_slice())]
            }
            Kind::Exec { scope, .. } => {
                scope.iter().map(|(name, values)| (name.as_str(), values.as_slice())).collect()
            }
            Kind::Redis { keys, commands } => {
                vec![("keys", keys.as_slice()), ("commands", commands.as_slice())]
            }
            Kind::Ssh { principals, commands, .. } => {
                vec![("principal", principals.as_slice()), ("command", commands.as_slice())]
            }
            Kind::Registry { repositories, actions, .. } => {
                vec![("repositories", repositories.as_slice()), ("actions", actions.as_slice())]
            }
            Kind::Static => vec![],
        }
    }

    /// Whether a credential has one value of a field, and not several.
    #[must_use]
    pub fn takes_one(&self, _field: &str) -> bool {
        match self {
            Kind::Postgres { .. } | Kind::Ssh { .. } => true,
            Kind::Exec { .. } | Kind::Redis { .. } | Kind::Registry { .. } | Kind::Static => false,
        }
    }

    /// What a credential consists of, as the templates of `deliver` name it. Its host and port are there always.
    #[must_use]
    pub fn parts(&self) -> &'static [&'static str] {
        match self {
            Kind::Postgres { .. } => &["user", "password", "database"],
            Kind::Exec { .. } | Kind::Registry { .. } | Kind::Static => &["token"],
            Kind::Redis { .. } => &["user", "password", "database"],
            Kind::Ssh { .. } => &["key", "certificate", "user"],
        }
    }

    /// Whether nothing of a credential works any more after its time, also of what it began. Roles of PostgreSQL keep
    /// their sessions, and users of Redis have no time.
    #[must_use]
    pub fn ends_by_itself(&self) -> bool {
        matches!(self, Kind::Exec { .. } | Kind::Registry { .. } | Kind::Ssh { .. })
    }

    /// Whether its credentials are one token, which can stand in a request.
    #[must_use]
    pub fn is_a_token(&self) -> bool {
        self.parts() == ["token"]
    }

    /// The variables in which clients look for it, and the parts that stand there: `{user}` and so on.
    #[must_use]
    pub fn usual_variables(&self) -> &'static [(&'static str, &'static str)] {
        match self {
            Kind::Postgres { .. } => &[
                ("PGHOST", "{host}"),
                ("PGPORT", "{port}"),
                ("PGUSER", "{user}"),
                ("PGPASSWORD", "{password}"),
                ("PGDATABASE", "{database}"),
            ],
            Kind::Exec { .. } | Kind::Registry { .. } | Kind::Static => &[],
            // redis-cli has a variable for the password alone, which is of no use without the user's name.
            Kind::Redis { .. } => &[("REDIS_URL", "redis://{user}:{password}@{host}:{port}/{database}")],
            // ssh itself reads files alone, which a program has to write.
            Kind::Ssh { .. } => {
                &[("SSH_PRIVATE_KEY", "{key}"), ("SSH_CERTIFICATE", "{certificate}"), ("SSH_USER", "{user}")]
            }
        }
    }
}
