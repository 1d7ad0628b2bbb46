//! A connection whose destination is known, whichever door it came by: what is spoken on it, and so what becomes
//! of it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cofferdam_core::egress::{ConnectPermit, Denial, DenialCode, Door, Host, Rules};
use cofferdam_core::policy::Protocol;

use super::client_hello::ClientHello;
use super::http::serve::{Conversation, Speaks, Told, Verdict};
use super::opening::{self, Opening, PATIENCE};
use super::postgres;
use super::sandbox::Sandbox;
use super::stream::{Stream, replay};
use super::tunnel;

/// How long a connection that is refused may wait before it says what it would speak, so that it can be told why
/// in that; others are closed.
const REFUSED_PATIENCE: Duration = Duration::from_secs(1);

/// Where a connection is meant to go.
#[derive(Clone, Debug)]
pub(crate) struct Meant {
    pub(crate) door: Door,
    pub(crate) host: Host,
    pub(crate) port: u16,
    /// The server's name, where the program leaves TLS to us: what it sends is to be inside.
    pub(crate) tls: Option<Vec<u8>>,
}

/// Ports on which the server speaks first, as IANA has them: FTP, SSH, SMTP, POP3, IMAP, submission of mail, MySQL. A
/// client there may wait for as long as we do.
const SERVERS_SPEAK_FIRST: [u16; 7] = [21, 22, 25, 110, 143, 587, 3306];

/// How long the first byte of a connection is waited for; none where it says nothing that is needed.
fn patience(is_allowed: bool, port: u16) -> Option<Duration> {
    match is_allowed {
        true => Some(PATIENCE),
        false if SERVERS_SPEAK_FIRST.contains(&port) => None,
        false => Some(REFUSED_PATIENCE),
    }
}

/// [`serve`] as one type of future: for a connection within another, whose type would contain itself, and beside others.
pub(crate) fn serve_within(
    sandbox: Arc<Sandbox>,
    stream: Stream,
    meant: Meant,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(serve(sandbox, stream, meant))
}

/// A refusal that isn't said yet. It is written down at the latest when this is dropped: so also where the run ends
/// before anybody has said what would be spoken.
struct Unsaid {
    sandbox: Arc<Sandbox>,
    denial: Denial,
    door: Door,
    told: Told,
}

impl Unsaid {
    fn new(sandbox: &Arc<Sandbox>, denial: Denial, door: Door) -> Self {
        Unsaid { sandbox: sandbox.clone(), denial, door, told: Told::default() }
    }

    /// Has it written down, and waits until it is.
    async fn say(&self) {
        if !self.told.tell() {
            self.sandbox.deny(&self.denial, self.door).await;
        }
    }
}

impl Drop for Unsaid {
    fn drop(&mut self) {
        if !self.told.tell() {
            self.sandbox.deny_now(&self.denial, self.door);
        }
    }
}

/// Serves a connection to its end. Whether it may be is decided now.
pub(crate) fn serve(sandbox: Arc<Sandbox>, stream: Stream, meant: Meant) -> impl Future<Output = ()> + Send {
    let verdict = sandbox.rules().connection(meant.door, &meant.host, meant.port);
    let verdict = verdict.map_err(|denial| Unsaid::new(&sandbox, denial, meant.door));
    serve_decided(sandbox, stream, meant, verdict)
}

async fn serve_decided(
    sandbox: Arc<Sandbox>,
    mut stream: Stream,
    meant: Meant,
    verdict: Result<ConnectPermit, Unsaid>,
) {
    let Meant { host, port, tls, .. } = meant;
    if let Ok(permit) = &verdict {
        match (permit.to().protocol(), &tls) {
            (Protocol::Tcp | Protocol::TlsPassthrough, Some(name)) => {
                return tunnel::serve_in_tls(&sandbox, permit, name, stream).await;
            }
            (Protocol::Tcp, None) => return tunnel::serve(&sandbox, permit, None, stream).await,
            _ => {}
        }
    }
    let (opening, bytes) = match patience(verdict.is_ok(), port) {
        // Who is refused isn't waited for: there is nothing that it could still say.
        Some(first) => match opening::read(&mut stream, first, first).await {
            Ok(read) => read,
            Err(_) => return,
        },
        None => (Opening::Nothing, vec![]),
    };
    let stream = replay(bytes, stream);
    match verdict {
        Ok(_) if opening == Opening::Nothing => {} // opened ahead of need, and not needed
        Ok(permit) => permitted(&sandbox, permit, tls, opening, stream).await,
        Err(mut unsaid) => {
            let needs = needs_as_spoken(sandbox.rules(), (&host, port), tls.is_some(), &opening);
            unsaid.denial.needs = needs.unwrap_or(unsaid.denial.needs.take());
            explain(unsaid, Some(&host), opening, stream).await;
        }
    }
}

/// The rule for what is spoken, where that can be read, instead of one for any bytes.
fn needs_as_spoken(
    rules: &Rules,
    (host, port): (&Host, u16),
    is_in_tls: bool,
    opening: &Opening,
) -> Option<Option<String>> {
    // The doors by which it would be known beforehand.
    let like = match opening {
        Opening::Tls(_) => Door::Connect,
        Opening::Http1 | Opening::Http2 if is_in_tls => Door::Connect,
        Opening::Http1 | Opening::Http2 => Door::Forward,
        _ => return None,
    };
    rules.connection(like, host, port).err().map(|denial| denial.needs)
}

/// Refuses a connection that isn't to a host at all, or one too many, and says why where that can be said.
pub(crate) fn refuse(
    sandbox: &Arc<Sandbox>,
    mut stream: Stream,
    door: Door,
    denial: Denial,
) -> impl Future<Output = ()> + Send + use<> {
    let unsaid = Unsaid::new(sandbox, denial, door);
    async move {
        let Ok((opening, bytes)) = opening::read(&mut stream, REFUSED_PATIENCE, REFUSED_PATIENCE).await
        else {
            return;
        };
        explain(unsaid, None, opening, replay(bytes, stream)).await;
    }
}

async fn permitted(
    sandbox: &Arc<Sandbox>,
    permit: ConnectPermit,
    tls: Option<Vec<u8>>,
    opening: Opening,
    stream: Stream,
) {
    // What is inside of TLS that we are to begin is plain here.
    let is_plain = permit.to().protocol() == if tls.is_some() { Protocol::Https } else { Protocol::Http };
    match (permit.to().protocol(), opening) {
        (Protocol::TlsPassthrough, Opening::Tls(hello)) if !hello.has_encrypted => {
            tunnel::serve(sandbox, &permit, hello.server_name.as_deref(), stream).await;
        }
        (Protocol::Https, Opening::Tls(hello)) if tls.is_none() => {
            let to = permit.to().clone();
            let conversation = Conversation::new(sandbox, to.door(), Verdict::Permitted(permit));
            end_tls(conversation, to.host(), &hello, stream).await;
        }
        (_, opening @ (Opening::Http1 | Opening::Http2)) if is_plain => {
            let speaks = if opening == Opening::Http1 { Speaks::Http1 } else { Speaks::Http2 };
            let door = permit.to().door();
            let conversation = Conversation::new(sandbox, door, Verdict::Permitted(permit));
            conversation.with_server_name(tls).serve(speaks, stream).await;
        }
        (protocol, opening) => {
            let denial = unreadable(sandbox, &permit, protocol, tls.is_some(), &opening);
            let to = permit.to();
            explain(Unsaid::new(sandbox, denial, to.door()), Some(to.host()), opening, stream).await;
        }
    }
}

/// The refusal of what isn't spoken as the rule says.
fn unreadable(
    sandbox: &Sandbox,
    permit: &ConnectPermit,
    protocol: Protocol,
    is_in_tls: bool,
    opening: &Opening,
) -> Denial {
    if protocol == Protocol::TlsPassthrough {
        // With a message inside the message, the server may read another name than this one.
        let is_tls = matches!(opening, Opening::Tls(_));
        return permit.denial(if is_tls { DenialCode::NameMismatch } else { DenialCode::NoServerName });
    }
    let is_http = matches!(opening, Opening::Http1 | Opening::Http2);
    let spoken = match (protocol, matches!(opening, Opening::Tls(_)) || (is_in_tls && is_http)) {
        (Protocol::Https, false) if is_http => Protocol::Http,
        (Protocol::Http, true) => Protocol::Https,
        _ => Protocol::Tcp,
    };
    sandbox.rules().spoken(permit, spoken)
}

/// Tells who sent something why it is refused, in what it speaks; closes what speaks nothing that can say so.
async fn explain(mut unsaid: Unsaid, host: Option<&Host>, opening: Opening, stream: Stream) {
    let verdict = Verdict::Denied(unsaid.denial.clone());
    let conversation = Conversation::new(&unsaid.sandbox, unsaid.door, verdict);
    match (opening, host) {
        (Opening::Tls(hello), Some(host)) => {
            unsaid.told = conversation.told();
            end_tls(conversation, host, &hello, stream).await;
        }
        (opening @ (Opening::Http1 | Opening::Http2), _) => {
            unsaid.told = conversation.told();
            let speaks = if opening == Opening::Http1 { Speaks::Http1 } else { Speaks::Http2 };
            conversation.serve(speaks, stream).await;
        }
        (Opening::Postgres, _) => {
            unsaid.say().await;
            postgres::refuse(&unsaid.denial, stream).await;
        }
        (Opening::Nothing | Opening::Other | Opening::Tls(_), _) => {
            // Written down before it is closed, so that who sees the one can see the other.
            unsaid.say().await;
            drop(stream);
        }
    }
    unsaid.say().await;
}

/// Ends TLS under the name that the client asked for, so that it can read an answer whatever that is.
async fn end_tls(conversation: Conversation, host: &Host, hello: &ClientHello, stream: Stream) {
    let named = hello.server_name.as_deref().and_then(|name| Host::parse(name).ok());
    let name = named.as_ref().unwrap_or(host);
    let Ok(stream) = conversation.sandbox().certificates().end_tls(name, stream).await else { return };
    let speaks = match stream.get_ref().1.alpn_protocol() {
        Some(b"h2") => Speaks::Http2,
        _ => Speaks::Http1,
    };
    conversation.with_server_name(hello.server_name.clone()).serve(speaks, Box::new(stream)).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_client_that_waits_for_its_server_is_not_waited_for() {
        assert_eq!(patience(false, 25), None);
        assert_eq!(patience(false, 443), Some(REFUSED_PATIENCE));
        assert_eq!(patience(true, 25), Some(PATIENCE), "a rule says that something else is spoken there");
    }
}
