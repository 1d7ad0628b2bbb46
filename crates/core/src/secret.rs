//! What must not be seen: bytes that show themselves nowhere and are overwritten when they are dropped.
//!
//! Nothing here is `Debug`, `Display`, `Clone` or serializable, so a secret can't slip into a message, a log or a
//! copy. Whoever needs the bytes says so ([`Secret::expose`]), which is easy to search for.

use std::ffi::CString;

use zeroize::Zeroizing;

use crate::request::BadVariable;

/// Bytes that must not be seen.
///
/// ```compile_fail,E0277
/// println!("{:?}", cofferdam_core::secret::Secret::new(vec![1]));
/// ```
///
/// ```compile_fail,E0599
/// let copy = cofferdam_core::secret::Secret::new(vec![1]).clone();
/// ```
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes bytes over. A vector that grew before has left copies behind: make it with the room that it needs.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Secret(Zeroizing::new(bytes))
    }

    /// The bytes. Not to be kept, shown or written anywhere but where they are meant for.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

/// An environment variable whose value must not be seen.
pub struct SecretVariable {
    name: String,
    value: Secret,
}

impl SecretVariable {
    /// Takes a name and a value if the environment can hold them.
    ///
    /// # Errors
    ///
    /// [`BadVariable`] says which half can't be held.
    pub fn new(name: impl Into<String>, value: Secret) -> Result<Self, BadVariable> {
        let name = name.into();
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(BadVariable::Name);
        }
        if value.expose().contains(&0) {
            return Err(BadVariable::Value);
        }
        Ok(SecretVariable { name, value })
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &Secret {
        &self.value
    }

    /// `NAME=VALUE`, for the one environment that it is meant for.
    #[must_use]
    pub fn to_c_string(&self) -> CString {
        let line = [self.name.as_bytes(), b"=", self.value.expose()].concat();
        CString::new(line).unwrap_or_default() // neither half holds a NUL byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_holds_what_an_environment_can_hold() {
        let value = |bytes: &[u8]| Secret::new(bytes.to_vec());
        let variable = SecretVariable::new("PGPASSWORD", value(b"p=w")).ok().unwrap();
        assert_eq!((variable.name(), variable.value().expose()), ("PGPASSWORD", &b"p=w"[..]));
        assert_eq!(SecretVariable::new("A=B", value(b"")).err(), Some(BadVariable::Name));
        assert_eq!(SecretVariable::new("", value(b"")).err(), Some(BadVariable::Name));
        assert_eq!(SecretVariable::new("A", value(b"a\0b")).err(), Some(BadVariable::Value));
    }
}
