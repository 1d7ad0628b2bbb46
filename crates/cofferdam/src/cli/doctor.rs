//! `cofferdam doctor`: what this machine can enforce.

use std::io::Write;

use super::Failure;

pub(super) fn main(_json: bool, out: &mut dyn Write) -> Result<u8, Failure> {
    for candidate in crate::host::candidates() {
        writeln!(out, "{}", candidate.name)?;
    }
    Ok(0)
}
