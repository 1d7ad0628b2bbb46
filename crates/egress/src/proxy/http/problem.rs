//! A refusal as an answer over HTTP: a problem document (RFC 9457) that a program can read. What it comes to stands in
//! the status line too, since many programs show that and no body; and git, which shows an error only where it is plain
//! text, gets it so.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use cofferdam_core::egress::Denial;
use http_body_util::{Either, Full};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::ext::ReasonPhrase;
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode, Uri};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

/// The header that has the code.
pub(crate) const HEADER: &str = "x-cofferdam-denied";

/// What an answer has for a body: a refusal's own, or that of whom was asked.
pub(crate) type Body = Either<Full<Bytes>, Held>;

/// A body of an origin's, whose request has one of its sandbox's turns until it is over.
pub(crate) struct Held {
    pub(crate) body: Incoming,
    pub(crate) _turn: Option<OwnedSemaphorePermit>,
}

impl hyper::body::Body for Held {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The document.
#[must_use]
pub(crate) fn document(denial: &Denial, run: &str) -> String {
    let mut document = json!({
        "type": "egress_denied",
        "status": denial.code.status(),
        "code": denial.code.code(),
        "detail": denial.code.sentence(),
        "host": denial.host,
        "port": denial.port,
        "method": denial.method,
        "path": denial.path,
        "rule": denial.rule,
        "needs": denial.needs,
        "run": run,
    })
    .to_string();
    document.push('\n');
    document
}

/// In what form a program shows an error to whoever runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The document.
    Problem,
    /// Lines of text.
    Text,
}

impl Form {
    /// That of whoever asks for this. What git asks for first is told by its address:
    /// <https://git-scm.com/docs/http-protocol>, "Discovering References".
    pub(crate) fn of(asked: &Uri) -> Form {
        let is_service = asked.query().is_some_and(|query| query.starts_with("service=git-"));
        let is_gits = asked.path().ends_with("/info/refs") && is_service;
        if is_gits { Form::Text } else { Form::Problem }
    }

    fn media_type(self) -> &'static str {
        match self {
            Form::Problem => "application/problem+json",
            Form::Text => "text/plain",
        }
    }

    fn body(self, denial: &Denial, run: &str) -> String {
        match self {
            Form::Problem => document(denial, run),
            Form::Text => format!("{}\n{}\n", reason(denial), denial.code.sentence()),
        }
    }
}

/// The refusal in a few words: the code, and what would have allowed it.
pub(crate) fn reason(denial: &Denial) -> String {
    match &denial.needs {
        Some(needs) => format!("Cofferdam: {}, needs {needs}", denial.code),
        None => format!("Cofferdam: {}", denial.code),
    }
}

/// The answer. `closes` is whether nothing more is read from the connection.
pub(crate) fn answer(denial: &Denial, run: &str, form: Form, closes: bool) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(form.body(denial, run))));
    *response.status_mut() = StatusCode::from_u16(denial.code.status()).unwrap_or(StatusCode::FORBIDDEN);
    // HTTP/2 has no such words. What can't stand there is left out: the body has it.
    if let Ok(reason) = ReasonPhrase::try_from(reason(denial)) {
        response.extensions_mut().insert(reason);
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(form.media_type()));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HEADER, HeaderValue::from_static(denial.code.code()));
    if closes {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests {
    use cofferdam_core::egress::DenialCode;

    use super::*;

    #[test]
    fn git_alone_is_answered_in_plain_text() {
        let form = |uri: &str| Form::of(&uri.parse().unwrap());
        assert_eq!(form("/pages.git/info/refs?service=git-upload-pack"), Form::Text);
        assert_eq!(form("https://a.test/pages.git/info/refs?service=git-receive-pack"), Form::Text);
        for other in ["/pages.git/info/refs", "/info?service=git-upload-pack", "/info/refs?x&service=git-x"] {
            assert_eq!(form(other), Form::Problem, "{other}");
        }
    }

    #[test]
    fn the_status_line_says_what_would_have_allowed_it_and_never_anything_that_ends_it() {
        let denial = Denial::of_bytes(DenialCode::HostNotAllowed, b"other.test");
        let asked = Denial { needs: Some("--allow other.test".to_owned()), ..denial.clone() };
        let phrase = |denial: &Denial| {
            let answer = answer(denial, "r_1", Form::Problem, false);
            let phrase = answer.extensions().get::<ReasonPhrase>();
            phrase.map(|phrase| String::from_utf8(phrase.as_bytes().to_vec()).unwrap())
        };
        assert_eq!(phrase(&asked).unwrap(), "Cofferdam: host_not_allowed, needs --allow other.test");
        assert_eq!(phrase(&denial).unwrap(), "Cofferdam: host_not_allowed");
        let split = Denial { needs: Some("a\r\nSet-Cookie: b".to_owned()), ..denial };
        assert_eq!(phrase(&split), None);
    }
}
