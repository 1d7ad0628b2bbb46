//! Names: what a sandbox is told about them, and what the outside is asked.
//!
//! Inside, each name has an address of its own that only the sandbox knows ([`names`]), so that whatever is
//! sent there is known to be for that name, whatever it is. Nobody outside is asked for a name before something
//! permitted is about to be sent to it ([`resolver`]).

pub mod message;
pub mod names;
pub(crate) mod question;
pub mod resolver;
