//! What may leave a sandbox: hosts, addresses, and the two decisions about them.
//!
//! Everything is a total function of values. The process that speaks to the network parses with
//! [`Host::parse`] and [`Authority::parse`], asks [`Rules`], judges what a lookup answered with [`judge`],
//! counts with [`Budget`], and dials a [`CheckedAddress`] with a permit in its hand. Permits and checked
//! addresses have private fields and one maker each, so what holds one has been decided about.
//!
//! 1. A name is asked for: [`Rules::lookup`]. Nothing is looked up outside for a name that no rule has.
//! 2. A connection comes by some [`Door`]: [`Rules::connection`].
//! 3. Its bytes are requests ([`Rules::request`], for each of them) or nobody's business ([`Rules::tunnel`]).
//! 4. Whatever is refused is a [`Denial`].

mod address;
mod authority;
mod budget;
mod decide;
mod denial;
mod explain;
mod foreign;
mod host;
mod miss;
mod path;
#[cfg(test)]
mod tests;

pub use address::{AddressDenied, CheckedAddress, judge};
pub use authority::{Authority, BadAuthority};
pub use budget::{Budget, Exhausted};
pub use decide::{ConnectPermit, Destination, Door, RequestHead, RequestPermit, Rules, Terms, TunnelPermit};
pub use denial::{Denial, DenialCode, SHOWN_BYTES, shown};
pub use explain::{Breadth, Explanation, Question, Says};
pub use foreign::{may_hold_a_credential, query_may_hold_a_credential};
pub use host::{BadHost, Host, HostName, LABEL_BYTES, NAME_BYTES};

pub(crate) use authority::{Bracketed, port};
pub(crate) use path::{is_plain, is_plain_path};
