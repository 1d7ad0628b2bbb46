//! PostgreSQL: a role for the task, which is a member of one template and has its grants.
//!
//! - The template is a role that can't log in. Granting to the new role directly would leave grants that only their
//!   grantor can take back.
//! - The server is given a verifier (RFC 5803) that is computed here, so the password is in none of its logs.
//! - `VALID UNTIL` is looked at when somebody logs in and never again, so the end is: no further login, sessions ended,
//!   role dropped. It takes a root with `CREATEROLE`, `pg_signal_backend` and the admin option on each template.
//! - The role can connect to every database that lets PUBLIC in: `credential test` says so.

use std::collections::BTreeMap;
use std::str;
use std::time::{Duration, SystemTime};

use cofferdam_core::secret::Secret;
use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls, SimpleQueryMessage};

use super::password::password;
use super::{Alive, Boxed, Issuer, IssuerError, Minted, Scope, is_here_by_name, one, root};
use crate::config::{IssuerConfig, Kind};
use crate::trial::Finding;

/// How long the server may take for each thing that it is asked.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many sessions a role may have at once. Clients open one; pools a few.
const SESSIONS: u32 = 4;

/// How often it is looked whether a session has ended that was told to, a millisecond apart: 2 s. The server's own wait
/// (`pg_terminate_backend` with a time) looks every 100 ms.
const LOOKS: u32 = 2000;

/// One server.
pub(super) struct Postgres {
    config: IssuerConfig,
    /// The session of the root, once there is one.
    session: tokio::sync::Mutex<Option<Client>>,
}

impl Postgres {
    pub(super) fn new(config: &IssuerConfig) -> Self {
        Postgres { config: config.clone(), session: tokio::sync::Mutex::default() }
    }

    /// Where the server is and how its root logs in.
    async fn settings(&self) -> Result<Config, IssuerError> {
        let root = root::read(&self.config).await?;
        let wrong = |why: &str| IssuerError::Root { issuer: self.config.name.clone(), why: why.to_owned() };
        let settings = str::from_utf8(root.expose()).ok().and_then(|text| text.parse::<Config>().ok());
        let settings = settings.ok_or_else(|| {
            wrong("isn't a connection string such as postgresql://USER:PASSWORD@HOST/DATABASE")
        })?;
        if settings.get_ssl_mode() != SslMode::Disable && !settings.get_hosts().iter().all(is_here) {
            return Err(wrong(
                "is on another machine, to which this version speaks without TLS: say `sslmode=disable` in it if \
                 the network between is yours, or lead there through a socket",
            ));
        }
        Ok(settings)
    }

    /// Has the root run statements whose rows, if they have any, nobody looks at.
    async fn run(&self, statements: &str) -> Result<(), IssuerError> {
        self.ask(statements).await.map(drop)
    }

    /// Has the root run statements, on the session that is kept or on a new one. Gives the rows, each value as text.
    async fn ask(&self, statements: &str) -> Result<Vec<Vec<String>>, IssuerError> {
        let mut session = self.session.lock().await;
        if session.as_ref().is_none_or(Client::is_closed) {
            let settings = self.settings().await?;
            *session = Some(log_in(&settings).await.map_err(|error| self.no_session(&error))?);
        }
        let Some(client) = session.as_ref() else { return Err(self.unreachable(&Failed::Late)) };
        let ran = timeout(PATIENCE, client.simple_query(statements)).await;
        match ran {
            Ok(Ok(messages)) => Ok(messages.iter().filter_map(row).collect()),
            Ok(Err(error)) if error.is_closed() => {
                *session = None;
                Err(self.lost(&Failed::Server(error)))
            }
            Ok(Err(error)) => Err(IssuerError::Refused {
                issuer: self.config.name.clone(),
                why: format!("refuses: {}", words(&error)),
            }),
            Err(_) => {
                *session = None; // nobody knows what it is still doing
                Err(self.lost(&Failed::Late))
            }
        }
    }

    /// Why the root has no session: the server refuses it, or there is none.
    fn no_session(&self, error: &Failed) -> IssuerError {
        match error {
            Failed::Server(said) if said.as_db_error().is_some() => IssuerError::Root {
                issuer: self.config.name.clone(),
                why: format!("is refused by the server: {error}"),
            },
            error => self.unreachable(error),
        }
    }

    fn unreachable(&self, error: &Failed) -> IssuerError {
        IssuerError::Unreachable { issuer: self.config.name.clone(), why: error.to_string() }
    }

    fn lost(&self, error: &Failed) -> IssuerError {
        IssuerError::Lost { issuer: self.config.name.clone(), why: error.to_string() }
    }
}

/// The values of a row, if that is what a message is. NULL is empty.
fn row(message: &SimpleQueryMessage) -> Option<Vec<String>> {
    let SimpleQueryMessage::Row(row) = message else { return None };
    Some((0..row.len()).map(|at| row.get(at).unwrap_or_default().to_owned()).collect())
}

/// Whether a server is on this machine, so that nobody reads what is said to it.
fn is_here(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => is_here_by_name(name),
        #[cfg(unix)]
        Host::Unix(_) => true,
    }
}

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("{}", words(.0))]
    Server(tokio_postgres::Error),
    #[error("it said nothing for 5 s")]
    Late,
}

/// What the server said, without what was sent to it.
fn words(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => said.message().to_owned(),
        None => std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string),
    }
}

/// Opens a session.
async fn log_in(settings: &Config) -> Result<Client, Failed> {
    let opened = timeout(PATIENCE, settings.connect(NoTls)).await.map_err(|_| Failed::Late)?;
    let (client, connection) = opened.map_err(Failed::Server)?;
    tokio::spawn(async move {
        let _ = connection.await; // who asks something over it hears of it
    });
    Ok(client)
}

/// Ends the sessions of a role, whose name this is as a literal, and waits until they are gone.
fn end_sessions(name: &str) -> String {
    format!(
        "DO $$ BEGIN \
         PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = {name}; \
         FOR look IN 1..{LOOKS} LOOP \
         PERFORM pg_stat_clear_snapshot(); \
         EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE usename = {name}); \
         IF look = {LOOKS} THEN RAISE EXCEPTION 'sessions of the role did not end'; END IF; \
         PERFORM pg_sleep(0.001); \
         END LOOP; END $$"
    )
}

impl Issuer for Postgres {
    fn mint<'a>(
        &'a self,
        handle: &'a str,
        scope: &'a Scope,
        until: SystemTime,
    ) -> Boxed<'a, Result<Minted, IssuerError>> {
        Box::pin(async move {
            let template = one(scope, "template");
            let password = password().map_err(|error| IssuerError::Root {
                issuer: self.config.name.clone(),
                why: format!("is of no use: there is no randomness here: {error}"),
            })?;
            let verifier = postgres_protocol::password::scram_sha_256(password.expose());
            let role = identifier(handle);
            self.run(&format!(
                "CREATE ROLE {role} LOGIN PASSWORD {} VALID UNTIL {} CONNECTION LIMIT {SESSIONS} IN ROLE {}",
                literal(&verifier),
                literal(&humantime::format_rfc3339_seconds(until).to_string()),
                identifier(template)
            ))
            .await?;
            let user = Secret::new(handle.as_bytes().to_vec());
            let database = Secret::new(one(scope, "database").as_bytes().to_vec());
            let parts = BTreeMap::from([("user", user), ("password", password), ("database", database)]);
            Ok(Minted { parts, expires: Some(until), kept: None })
        })
    }

    fn can_revoke(&self, _: &str) -> bool {
        true
    }

    fn revoke<'a>(&'a self, handle: &'a str) -> Boxed<'a, Result<(), IssuerError>> {
        Box::pin(async move {
            let (role, name) = (identifier(handle), literal(handle));
            // In one piece, so that it takes one round trip; each in a transaction of its own would leave a role
            // that nobody can use if a later one failed, and so does this: what failed is said and tried again.
            self.run(&format!(
                "DO $$ BEGIN IF EXISTS (SELECT FROM pg_roles WHERE rolname = {name}) THEN \
                 ALTER ROLE {role} NOLOGIN; END IF; END $$"
            ))
            .await?;
            self.run(&end_sessions(&name)).await?;
            self.run(&format!("DROP ROLE IF EXISTS {role}")).await
        })
    }

    fn try_use<'a>(
        &'a self,
        handle: &'a str,
        scope: &'a Scope,
        minted: Option<&'a Minted>,
    ) -> Boxed<'a, Result<Alive, IssuerError>> {
        Box::pin(async move {
            let root = self.settings().await?;
            let mut settings = Config::new();
            for host in root.get_hosts() {
                match host {
                    Host::Tcp(name) => settings.host(name),
                    #[cfg(unix)]
                    Host::Unix(path) => settings.host_path(path),
                };
            }
            root.get_ports().iter().for_each(|port| {
                settings.port(*port);
            });
            // Without the password, as after a crash, the server's answer is the same for a role that is gone.
            let password = minted.and_then(|minted| minted.parts.get("password"));
            settings.user(handle).dbname(one(scope, "database"));
            settings.password(password.map_or(&b"-"[..], Secret::expose));
            match log_in(&settings).await {
                Ok(_) => Ok(Alive::Yes),
                Err(Failed::Server(error)) if refuses_login(&error) => {
                    Ok(Alive::No("the server refused its login".to_owned()))
                }
                Err(error) => Err(self.unreachable(&error)),
            }
        })
    }

    fn findings(&self) -> Boxed<'_, Result<Vec<Finding>, IssuerError>> {
        Box::pin(async move {
            let Kind::Postgres { databases, .. } = &self.config.kind else { return Ok(vec![]) };
            let rights = self.ask(PUBLIC_RIGHTS).await?;
            let signals = self.ask(MAY_SIGNAL).await?;
            let root_cant_end = signals.first().is_none_or(|row| row.first().is_none_or(|said| said != "t"));
            Ok(of_rights(&rights, databases)
                .into_iter()
                .chain(root_cant_end.then(cant_end_sessions))
                .collect())
        })
    }
}

/// What anybody may do with each database that can be connected to.
///
/// Source: PostgreSQL, "System Information Functions": the grantee 0 is PUBLIC, and a database whose `datacl` is null
/// has what `acldefault` gives.
const PUBLIC_RIGHTS: &str = "SELECT d.datname, a.privilege_type FROM pg_database d, \
     aclexplode(coalesce(d.datacl, acldefault('d', d.datdba))) a \
     WHERE d.datallowconn AND a.grantee = 0 ORDER BY d.datname";

/// Whether the root may end the sessions of those whom it mints.
const MAY_SIGNAL: &str = "SELECT pg_has_role(current_user, 'pg_signal_backend', 'USAGE')";

/// What PUBLIC may do that whoever is minted shouldn't, of rows of a database's name and a right.
fn of_rights(rows: &[Vec<String>], ceiling: &[String]) -> Vec<Finding> {
    let with = |right: &str, in_ceiling: bool| -> Vec<&str> {
        let wanted = |row: &&Vec<String>| {
            row.get(1).is_some_and(|has| has == right)
                && row.first().is_some_and(|name| ceiling.contains(name) == in_ceiling)
        };
        rows.iter().filter(wanted).filter_map(|row| row.first()).map(String::as_str).collect()
    };
    let revoke = |right: &str, names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| identifier(name)).collect();
        format!("REVOKE {right} ON DATABASE {} FROM PUBLIC", names.join(", "))
    };
    let mut findings = vec![];
    let others = with("CONNECT", false);
    if !others.is_empty() {
        findings.push(Finding {
            message: format!("whoever it mints can connect to {} too, since PUBLIC may", others.join(", ")),
            fix: format!("{}; GRANT it to those who need it", revoke("CONNECT", &others)),
        });
    }
    let temporary = with("TEMPORARY", true);
    if !temporary.is_empty() {
        let message = format!(
            "whoever it mints can make temporary tables in {}, since PUBLIC may",
            temporary.join(", ")
        );
        findings.push(Finding { message, fix: revoke("TEMPORARY", &temporary) });
    }
    findings
}

fn cant_end_sessions() -> Finding {
    Finding {
        message: "its root can't end sessions that are open when a run ends".to_owned(),
        fix: "GRANT pg_signal_backend to its root".to_owned(),
    }
}

/// Whether the server looked at a login and didn't take it.
fn refuses_login(error: &tokio_postgres::Error) -> bool {
    let refusals = [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION];
    error.code().is_some_and(|code| refusals.contains(code))
}

/// A name as SQL has it.
fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL has it. Without a backslash, which some servers read as more than itself, and without `E''`.
fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_ends_where_it_should() {
        assert_eq!(identifier("a\"; DROP ROLE b; --"), "\"a\"\"; DROP ROLE b; --\"");
        assert_eq!(literal("it's"), "'it''s'");
    }

    #[test]
    fn what_public_may_is_a_finding_with_the_statement_that_ends_it() {
        let rows =
            [("post\"gres", "CONNECT"), ("shop", "CONNECT"), ("shop", "TEMPORARY"), ("other", "TEMPORARY")];
        let rows = rows.map(|(name, right)| vec![name.to_owned(), right.to_owned()]);
        let found = of_rights(&rows, &["shop".to_owned()]);
        let fixes: Vec<_> = found.iter().map(|finding| finding.fix.as_str()).collect();
        assert_eq!(
            fixes,
            [
                "REVOKE CONNECT ON DATABASE \"post\"\"gres\" FROM PUBLIC; GRANT it to those who need it",
                "REVOKE TEMPORARY ON DATABASE \"shop\" FROM PUBLIC",
            ]
        );
        assert_eq!(of_rights(&rows[1..2], &["shop".to_owned()]), [], "that is what it is minted for");
    }

    #[test]
    fn a_server_is_here_by_its_loopback_or_a_socket_alone() {
        let here = |text: &str| text.parse::<Config>().unwrap().get_hosts().iter().all(is_here);
        for text in
            ["postgresql://a@127.0.0.1/b", "postgresql://a@localhost/b", "host=/run/postgresql user=a"]
        {
            assert!(here(text), "{text}");
        }
        for text in
            ["postgresql://a@db.internal/b", "postgresql://a@10.0.0.5/b", "host=127.0.0.1,db.internal"]
        {
            assert!(!here(text), "{text}");
        }
    }
}
