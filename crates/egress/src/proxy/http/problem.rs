//! A refusal as an answer over HTTP: a problem document (RFC 9457) that a program can read.

use bytes::Bytes;
use cofferdam_core::egress::Denial;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

/// The header that has the code.
pub(crate) const HEADER: &str = "x-cofferdam-denied";

/// What an answer has for a body: a refusal's own, or that of whom was asked.
pub(crate) type Body = Either<Full<Bytes>, Incoming>;

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

/// The answer. `closes` is whether nothing more is read from the connection.
pub(crate) fn answer(denial: &Denial, run: &str, closes: bool) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(document(denial, run))));
    *response.status_mut() = StatusCode::from_u16(denial.code.status()).unwrap_or(StatusCode::FORBIDDEN);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(HEADER, HeaderValue::from_static(denial.code.code()));
    if closes {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
