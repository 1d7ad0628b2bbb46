//! What of a message is about one connection and not about the message: it ends here, and the next connection has
//! its own (RFC 9110, section 7.6.1).

use cofferdam_core::egress::{Destination, Host};
use http::header::{
    CONNECTION, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE,
};
use hyper::http;

/// Beside those that `Connection` names.
const OF_A_CONNECTION: [HeaderName; 4] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
];

/// Takes off what is about the connection. What asks for another protocol stays where `keeps_upgrade` says so.
pub(crate) fn take_off(headers: &mut HeaderMap, keeps_upgrade: bool) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // These are the message's whatever somebody says: without them it would be another.
        .filter(|name| *name != HOST && *name != TE && *name != http::header::CONTENT_LENGTH)
        .collect();
    let upgrade = headers.get(UPGRADE).cloned();
    for name in named.iter().chain(&OF_A_CONNECTION) {
        headers.remove(name);
    }
    // RFC 9110, section 10.1.4: of transfer codings, only that trailers are welcome concerns the origin.
    let wants_trailers = headers.get_all(TE).iter().any(|value| {
        value.to_str().is_ok_and(|value| value.split(',').any(|coding| coding.trim() == "trailers"))
    });
    headers.remove(TE);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    headers.remove(UPGRADE);
    if let Some(upgrade) = upgrade.filter(|_| keeps_upgrade) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
}

/// Whether a request asks to speak something else from here on. HTTP/2 (RFC 7540's `h2c`, which RFC 9113 took
/// back) isn't something else: who asks for it takes an answer as well.
pub(crate) fn asks_to_upgrade(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .is_some_and(|value| value.to_str().is_ok_and(|value| !value.trim().starts_with("h2c")))
}

/// Puts what HTTP/2 may have in many lines into the one that HTTP/1 has: RFC 9113, section 8.2.3.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let all: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if all.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// The authority of a destination as a request says it: without a port that goes without saying.
pub(crate) fn authority(to: &Destination) -> String {
    let host = match to.host() {
        Host::Address(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
        host => host.to_string(),
    };
    if to.protocol().default_port() == Some(to.port()) { host } else { format!("{host}:{}", to.port()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        lines
            .iter()
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn what_is_about_one_connection_ends_there() {
        let mut some = headers(&[
            ("connection", "close, X-Mine, Content-Length"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "gzip, trailers"),
            ("content-length", "5"),
            ("upgrade", "websocket"),
            ("x-other", "2"),
        ]);
        take_off(&mut some, false);
        assert_eq!(some, headers(&[("content-length", "5"), ("x-other", "2"), ("te", "trailers")]));
    }

    #[test]
    fn cookies_are_one_line_where_there_may_be_one_alone() {
        let mut some = headers(&[("x", "1")]);
        some.append(COOKIE, "a=1".parse().unwrap());
        some.append(COOKIE, "b=2".parse().unwrap());
        join_cookies(&mut some);
        assert_eq!(some, headers(&[("x", "1"), ("cookie", "a=1; b=2")]));
    }

    #[test]
    fn what_asks_for_another_protocol_is_said_again() {
        let mut some = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        assert!(asks_to_upgrade(&some));
        take_off(&mut some, true);
        assert_eq!(some, headers(&[("connection", "upgrade"), ("upgrade", "websocket")]));
        assert!(!asks_to_upgrade(&headers(&[("upgrade", "h2c")])));
    }
}
