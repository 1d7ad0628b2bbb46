//! Redis: a user of its access control lists for the task, who may do these commands on these keys.
//!
//! - The server is given a SHA-256 of the password, so the password is in none of its logs, files and replicas.
//! - `ACL DELUSER` ends the user and closes its connections. A user has no end of its own, and is lost when the server
//!   starts again: so it says of no credential when it expires.
//! - A server whose `default` user needs no password is refused: whoever reaches it may do anything, and a credential
//!   would narrow nothing.
//! - The root needs `+acl|setuser +acl|deluser +acl|getuser`.

mod address;
mod resp;

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime};

use cofferdam_core::secret::Secret;
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use super::password::password;
use super::{Alive, Boxed, Issuer, IssuerError, Minted, Scope, no_findings, root};
use crate::config::IssuerConfig;
use crate::trial::Finding;
use address::Address;
use resp::{Connection, Reply};

/// How long the server may take for each thing that it is asked.
const PATIENCE: Duration = Duration::from_secs(5);

/// One server.
pub(super) struct Redis {
    config: IssuerConfig,
}

impl Redis {
    pub(super) fn new(config: &IssuerConfig) -> Self {
        Redis { config: config.clone() }
    }

    fn wrong_root(&self, why: impl Into<String>) -> IssuerError {
        IssuerError::Root { issuer: self.config.name.clone(), why: why.into() }
    }

    fn refused(&self, said: &str) -> IssuerError {
        IssuerError::Refused { issuer: self.config.name.clone(), why: format!("refuses: {said}") }
    }

    fn unreachable(&self, error: &io::Error) -> IssuerError {
        IssuerError::Unreachable { issuer: self.config.name.clone(), why: error.to_string() }
    }

    fn lost(&self, error: &io::Error) -> IssuerError {
        IssuerError::Lost { issuer: self.config.name.clone(), why: error.to_string() }
    }

    /// Where the server is and how its root logs in.
    async fn address(&self) -> Result<Address, IssuerError> {
        let root = root::read(&self.config).await?;
        Address::parse(root.expose()).map_err(|why| self.wrong_root(why))
    }

    async fn connect(&self, address: &Address) -> Result<Connection, IssuerError> {
        let opened = in_time(Connection::open(&address.host, address.port)).await;
        opened.map_err(|error| self.unreachable(&error))
    }

    /// Logs the root in on a connection.
    async fn log_in(&self, connection: &mut Connection, address: &Address) -> Result<(), IssuerError> {
        let Some(password) = &address.password else {
            return Err(self.wrong_root("has no password: write it as redis://USER:PASSWORD@HOST:PORT/0"));
        };
        let words = [b"AUTH", address.user.as_bytes(), password.expose()];
        match in_time(connection.ask(&words)).await {
            Ok(Reply::Refused(said)) => Err(self.wrong_root(format!("isn't taken by the server: {said}"))),
            Ok(_) => Ok(()),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    /// Has the root ask something, on a connection of its own.
    async fn ask(&self, words: &[&[u8]]) -> Result<Reply, IssuerError> {
        let address = self.address().await?;
        let mut connection = self.connect(&address).await?;
        self.log_in(&mut connection, &address).await?;
        in_time(connection.ask(words)).await.map_err(|error| self.lost(&error))
    }

    /// Refuses a server that nobody has to log in to.
    async fn refuse_open(&self, address: &Address) -> Result<(), IssuerError> {
        let mut connection = self.connect(address).await?;
        match in_time(connection.ask(&[b"PING"])).await {
            Ok(Reply::Refused(_)) => Ok(()),
            Ok(_) => Err(self.wrong_root(
                "is for a server that lets in anybody without a password, where a credential would narrow nothing: \
                 switch its user `default` off, or give it a password",
            )),
            Err(error) => Err(self.unreachable(&error)),
        }
    }

    /// Whether the root sees a user by this name.
    async fn look_up(&self, handle: &str) -> Result<Alive, IssuerError> {
        match self.ask(&[b"ACL", b"GETUSER", handle.as_bytes()]).await? {
            Reply::Nothing => Ok(Alive::No("the server knows nobody by its name".to_owned())),
            Reply::Refused(said) => Err(self.refused(&said)),
            Reply::Done(_) | Reply::Something => Ok(Alive::Yes),
        }
    }
}

/// Waits for the server for as long as it may take.
async fn in_time<T>(asked: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it said nothing for 5 s");
    timeout(PATIENCE, asked).await.map_err(late)?
}

/// The rules of a user: each is one word, and each value has been looked at when the file was read.
fn rules(scope: &Scope, password: &Secret) -> Vec<String> {
    let values = |field: &str| scope.get(field).map_or(&[][..], Vec::as_slice);
    let hash: String = Sha256::digest(password.expose()).iter().map(|byte| format!("{byte:02x}")).collect();
    let mut rules = vec!["reset".to_owned(), "on".to_owned(), format!("#{hash}"), "resetchannels".to_owned()];
    rules.extend(values("keys").iter().map(|pattern| match pattern.starts_with('%') {
        true => pattern.clone(),
        false => format!("~{pattern}"),
    }));
    rules.extend(values("commands").iter().map(|command| format!("+{command}")));
    rules
}

impl Issuer for Redis {
    fn mint<'a>(
        &'a self,
        handle: &'a str,
        scope: &'a Scope,
        _: SystemTime,
    ) -> Boxed<'a, Result<Minted, IssuerError>> {
        Box::pin(async move {
            let address = self.address().await?;
            self.refuse_open(&address).await?;
            let password = password().map_err(|error| {
                self.wrong_root(format!("is of no use: there is no randomness here: {error}"))
            })?;
            let rules = rules(scope, &password);
            let mut words = vec![&b"ACL"[..], b"SETUSER", handle.as_bytes()];
            words.extend(rules.iter().map(String::as_bytes));
            if let Reply::Refused(said) = self.ask(&words).await? {
                return Err(self.refused(&said)); // a user is changed by all of its rules or by none
            }
            let text = |text: &str| Secret::new(text.as_bytes().to_vec());
            let database = text(&address.database.to_string());
            let parts =
                BTreeMap::from([("user", text(handle)), ("password", password), ("database", database)]);
            Ok(Minted { parts, expires: None, kept: None })
        })
    }

    fn can_revoke(&self, _: &str) -> bool {
        true
    }

    fn revoke<'a>(&'a self, handle: &'a str) -> Boxed<'a, Result<(), IssuerError>> {
        Box::pin(async move {
            match self.ask(&[b"ACL", b"DELUSER", handle.as_bytes()]).await? {
                Reply::Refused(said) => Err(self.refused(&said)),
                _ => Ok(()),
            }
        })
    }

    fn try_use<'a>(
        &'a self,
        handle: &'a str,
        _: &'a Scope,
        minted: Option<&'a Minted>,
    ) -> Boxed<'a, Result<Alive, IssuerError>> {
        Box::pin(async move {
            // Without the password, as after a crash, the server's refusal would say nothing about the user.
            let Some(password) = minted.and_then(|minted| minted.parts.get("password")) else {
                return self.look_up(handle).await;
            };
            let mut connection = self.connect(&self.address().await?).await?;
            let words = [b"AUTH", handle.as_bytes(), password.expose()];
            match in_time(connection.ask(&words)).await {
                Ok(Reply::Refused(said)) if said.starts_with("WRONGPASS") => {
                    Ok(Alive::No("the server refused its login".to_owned()))
                }
                Ok(Reply::Refused(said)) => Err(self.refused(&said)),
                Ok(_) => Ok(Alive::Yes),
                Err(error) => Err(self.unreachable(&error)),
            }
        })
    }

    fn findings(&self) -> Boxed<'_, Result<Vec<Finding>, IssuerError>> {
        no_findings()
    }
}

#[cfg(test)]
mod tests;
