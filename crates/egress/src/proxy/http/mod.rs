//! Requests: read once and strictly, judged one by one, answered by their origin or by a refusal that says why.

pub(crate) mod astray;
pub mod framing;
pub(crate) mod guard;
pub(crate) mod headers;
pub(crate) mod problem;
pub(crate) mod serve;

/// How many bytes of a body wait on their way, in each direction: fewer have programs woken more often, and more don't
/// stay in a core's cache. More than any head that is taken.
pub(crate) const BODY_BYTES: usize = 256 << 10;
