//! Requests: read once and strictly, judged one by one, answered by their origin or by a refusal that says why.

pub mod framing;
pub(crate) mod guard;
pub(crate) mod headers;
pub(crate) mod problem;
pub(crate) mod serve;
