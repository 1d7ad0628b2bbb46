//! Refusals on the way out, in the words that programs, people and logs get.

use std::fmt;

use super::authority::BadAuthority;
use super::decide::Destination;
use super::host::Host;

/// The most bytes of a host, a method or a path that a denial shows.
pub const SHOWN_BYTES: usize = 256;

macro_rules! denial_codes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $status:literal, $why:literal;)+) => {
        /// The stable names of refusals on the way out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum DenialCode { $($(#[$doc])* $variant,)+ }

        impl DenialCode {
            /// Every one of them.
            pub const ALL: &[DenialCode] = &[$(DenialCode::$variant,)+];

            /// The public name.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(DenialCode::$variant => $name,)+ }
            }

            /// The code of a name.
            #[must_use]
            pub fn of_code(code: &str) -> Option<DenialCode> {
                DenialCode::ALL.iter().find(|known| known.code() == code).copied()
            }

            /// The status of an answer over HTTP that carries it.
            #[must_use]
            pub fn status(self) -> u16 {
                match self { $(DenialCode::$variant => $status,)+ }
            }

            /// One sentence that says what was refused.
            fn why(self) -> &'static str {
                match self { $(DenialCode::$variant => $why,)+ }
            }
        }
    };
}

denial_codes! {
    /// A credential for this host has expired.
    CredentialExpired = "credential_expired", 403, "The credential that this request needs has expired, or was used as often as it may be.";
    /// A credential was sent to a host that it isn't for.
    CredentialWrongHost = "credential_wrong_host", 403, "The credential in this request is not for this host.";
    /// A credential stands where it isn't put in.
    CredentialWrongPlace = "credential_wrong_place", 403, "What stands for the credential is in a part of the request where it is not replaced: it goes whole into the one header that it is for (Authorization: Bearer, unless the task says another), and nowhere else.";
    /// A credential that isn't ours, on a host that has one of ours.
    ForeignCredential = "foreign_credential", 403, "This host takes the credential of this task alone, and the request carries what may be another (an Authorization header, an API key, a cookie, a signed address, or a WebSocket).";
    /// No rule names the host.
    HostNotAllowed = "host_not_allowed", 403, "The policy of this task names no such host.";
    /// What should name a host and a port doesn't.
    InvalidAuthority = "invalid_authority", 400, "The request does not say in one clear form which host and port it is for.";
    /// What should name a host doesn't.
    InvalidHost = "invalid_host", 400, "The request names something that is no host.";
    /// A budget of the task is used up.
    LimitExceeded = "limit_exceeded", 403, "This task has used up what its policy lets it send.";
    /// Rules name the host, but not with this method.
    MethodNotAllowed = "method_not_allowed", 403, "The policy of this task allows this host, but not with this method.";
    /// The names that a request gives for its host differ.
    NameMismatch = "name_mismatch", 403, "The connection, the server name and the request do not name the same host and port.";
    /// A handshake without a server name, or none where there should be one.
    NoServerName = "no_server_name", 403, "The connection does not begin with TLS that names its server.";
    /// Rules name the host and the method, but not this path.
    PathNotAllowed = "path_not_allowed", 403, "The policy of this task allows this host, but not this path.";
    /// Rules name the host, but not this port.
    PortNotAllowed = "port_not_allowed", 403, "The policy of this task allows this host, but not on this port.";
    /// The host is at an address that isn't dialled.
    PrivateAddress = "private_address", 403, "The host is at an address that this task may not reach.";
    /// The run is over.
    TaskEnded = "task_ended", 403, "The task that this connection belongs to has ended.";
    /// The server's certificate isn't to be trusted, or there is no TLS.
    UpstreamTls = "upstream_tls", 502, "The server could not prove that it is the host that was asked for, or speaks no TLS.";
    /// The server isn't reached.
    UpstreamUnreachable = "upstream_unreachable", 502, "The host is allowed, but it could not be reached, or did not answer in HTTP.";
}

impl DenialCode {
    /// What an agent is told: what was refused, and that this is to be reported rather than tried again.
    #[must_use]
    pub fn sentence(self) -> String {
        let then = match self {
            DenialCode::UpstreamTls | DenialCode::UpstreamUnreachable => {
                "Nothing in the policy forbids it; report it if it stays so."
            }
            DenialCode::InvalidAuthority | DenialCode::InvalidHost => {
                "Sending it again will not help; report it if the request is what was meant."
            }
            DenialCode::CredentialWrongPlace | DenialCode::ForeignCredential => {
                "Send it as this says; if that is what was done, report it."
            }
            _ => "Do not try again or look for a way around it; report it to whoever gave the task.",
        };
        format!("{} {then}", self.why())
    }
}

impl fmt::Display for DenialCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl From<BadAuthority> for DenialCode {
    fn from(bad: BadAuthority) -> DenialCode {
        match bad {
            BadAuthority::Host(_) => DenialCode::InvalidHost,
            BadAuthority::NoPort | BadAuthority::Port | BadAuthority::UserInformation => {
                DenialCode::InvalidAuthority
            }
        }
    }
}

/// One refusal. What of it the program chose is printable ASCII of at most [`SHOWN_BYTES`] and what its
/// escapes take.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Denial {
    /// Why.
    pub code: DenialCode,
    /// The host that was asked for, as far as it could be read.
    pub host: String,
    /// The port that was asked for, if it was.
    pub port: Option<u16>,
    /// The method of the request, if there was one.
    pub method: Option<String>,
    /// The path of the request without its query, if there was one.
    pub path: Option<String>,
    /// The rule or the limit that decided: the one that misses least.
    pub rule: Option<String>,
    /// The smallest flag that would allow it; none where no flag can.
    pub needs: Option<String>,
}

impl Denial {
    /// A refusal of a host that was read.
    #[must_use]
    pub fn of_host(code: DenialCode, host: &Host, port: Option<u16>) -> Denial {
        Denial { port, ..Denial::of_bytes(code, host.to_string().as_bytes()) }
    }

    /// A refusal of something that names no host, or of a host whose port isn't known.
    #[must_use]
    pub fn of_bytes(code: DenialCode, host: &[u8]) -> Denial {
        let host = shown(host);
        Denial { code, host, port: None, method: None, path: None, rule: None, needs: None }
    }

    /// A refusal of a connection or of a request on it.
    #[must_use]
    pub fn of_destination(code: DenialCode, to: &Destination) -> Denial {
        Denial::of_host(code, to.host(), Some(to.port()))
    }

    /// The same, of a request with this method and this path, from which a query is taken off.
    #[must_use]
    pub fn with_request(mut self, method: &[u8], path: &[u8]) -> Denial {
        let path = path.split(|byte| matches!(byte, b'?' | b'#')).next().unwrap_or_default();
        self.method = Some(shown(method));
        self.path = Some(shown(path));
        self
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.host, self.code)
    }
}

/// Any bytes as printable ASCII: others are spelled out as `\xNN`, and what is longer than [`SHOWN_BYTES`] is
/// cut, with `...` for the rest.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::new();
    for &byte in bytes.iter().take(SHOWN_BYTES) {
        match byte {
            b'\\' => text.push_str("\\\\"),
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    if bytes.len() > SHOWN_BYTES {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_are_those_that_are_promised_with_their_statuses() {
        let of = |status| {
            let codes = DenialCode::ALL.iter().filter(move |code| code.status() == status);
            codes.map(|code| code.code()).collect::<Vec<_>>()
        };
        assert_eq!(of(400), ["invalid_authority", "invalid_host"]);
        assert_eq!(of(502), ["upstream_tls", "upstream_unreachable"]);
        assert_eq!(
            of(403),
            [
                "credential_expired",
                "credential_wrong_host",
                "credential_wrong_place",
                "foreign_credential",
                "host_not_allowed",
                "limit_exceeded",
                "method_not_allowed",
                "name_mismatch",
                "no_server_name",
                "path_not_allowed",
                "port_not_allowed",
                "private_address",
                "task_ended",
            ]
        );
        assert_eq!(DenialCode::ALL.len(), 17);
    }

    #[test]
    fn an_agent_is_told_to_report_it() {
        for code in DenialCode::ALL {
            assert!(code.sentence().contains("report it"), "{code}");
        }
    }

    #[test]
    fn what_a_denial_shows_drives_no_terminal_and_has_no_query() {
        let denial = Denial::of_bytes(DenialCode::InvalidHost, b"a\x1b[2J\n\\\xff")
            .with_request(b"GE\0T", b"/x?token=1#y");
        assert_eq!(denial.host, r"a\x1b[2J\x0a\\\xff");
        assert_eq!((denial.method.unwrap(), denial.path.unwrap()), (r"GE\x00T".into(), "/x".into()));
        assert_eq!(shown(&[b'a'; SHOWN_BYTES + 1]), "a".repeat(SHOWN_BYTES) + "...");
        assert_eq!(shown(&[0xff; SHOWN_BYTES]).len(), 4 * SHOWN_BYTES);
    }
}
