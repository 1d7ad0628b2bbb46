//! Where in a request a credential stands: in one declared header, and nowhere else. What might be another credential
//! is refused, since an attacker's own key for an allowed host is a way out.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cofferdam_core::egress::{DenialCode, may_hold_a_credential, query_may_hold_a_credential};
use cofferdam_core::secret::Secret;
use cofferdam_core::surrogate;
use cofferdam_core::weaken::{self, Control};
use hyper::Uri;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use crate::config::Inject;

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// No credential. Some clients ask so first, and send one when they are told to.
    Nothing,
    /// The surrogate, in its place.
    Surrogate,
}

/// Judges a head: what it carries.
///
/// # Errors
///
/// The code by which it is refused: something else than this surrogate, or this one elsewhere. `is_ours` is whether a
/// surrogate is one of the same run's.
pub(crate) fn judge(
    place: &Inject,
    surrogate: &str,
    uri: &Uri,
    headers: &HeaderMap,
    is_ours: impl Fn(&str) -> bool,
) -> Result<Carries, DenialCode> {
    let own = header(place);
    let mut carries = Carries::Nothing;
    let mut values = headers.get_all(&own).iter();
    if let Some(value) = values.next() {
        match in_place(place, value).as_deref().map(String::as_str) {
            Some(found) if found == surrogate => carries = Carries::Surrogate,
            Some("") => {} // a variable that wasn't set: it goes as it is, and the host asks for more
            Some(found) if is_ours(found) => return Err(DenialCode::CredentialWrongHost),
            _ if holds(value.as_bytes(), surrogate) => return Err(DenialCode::CredentialWrongPlace),
            _ if weaken::is_off(Control::ForeignCredential) => {}
            _ => return Err(DenialCode::ForeignCredential),
        }
        if values.next().is_some() {
            return Err(DenialCode::ForeignCredential);
        }
    }
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    let elsewhere = || headers.iter().filter(|(name, _)| **name != own);
    if surrogate::stands_in(target.as_bytes())
        || elsewhere().any(|(_, value)| surrogate::stands_in(value.as_bytes()))
    {
        return Err(DenialCode::CredentialWrongPlace);
    }
    let is_foreign = elsewhere().any(|(name, _)| may_hold_a_credential(name.as_str()))
        || query_may_hold_a_credential(uri.query().unwrap_or_default());
    if is_foreign && !weaken::is_off(Control::ForeignCredential) {
        return Err(DenialCode::ForeignCredential);
    }
    Ok(carries)
}

/// The header that has the credential.
pub(crate) fn header(place: &Inject) -> HeaderName {
    match place {
        Inject::Bearer | Inject::Basic { .. } => AUTHORIZATION,
        // It was read as one when the operator's file was.
        Inject::Header(name) => HeaderName::from_bytes(name.as_bytes()).unwrap_or(AUTHORIZATION),
    }
}

/// What stands where the surrogate should.
fn in_place(place: &Inject, value: &HeaderValue) -> Option<Zeroizing<String>> {
    let value = value.to_str().ok()?;
    let found = match place {
        Inject::Header(_) => value.to_owned(),
        Inject::Bearer => scheme(value).filter(|(scheme, _)| is_bearer(scheme))?.1.to_owned(),
        Inject::Basic { .. } => basic(value)?.1,
    };
    Some(Zeroizing::new(found))
}

/// RFC 9110, section 11.4: a scheme, spaces, and what belongs to it.
fn scheme(value: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = value.split_once(' ')?;
    Some((scheme, rest.trim_matches(' ')))
}

/// `Bearer` (RFC 6750), or `token`, which GitHub's clients write.
fn is_bearer(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("bearer") || scheme.eq_ignore_ascii_case("token")
}

/// The user and the password of RFC 7617.
fn basic(value: &str) -> Option<(String, String)> {
    let (_, encoded) = scheme(value).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))?;
    let decoded = String::from_utf8(STANDARD.decode(encoded).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// Whether this surrogate is somewhere in a value.
fn holds(value: &[u8], surrogate: &str) -> bool {
    value.windows(surrogate.len()).any(|part| part == surrogate.as_bytes()) || surrogate::stands_in(value)
}

/// The value of the header with the secret in place of the surrogate; none where the secret can't stand there.
pub(crate) fn with_secret(place: &Inject, before: &HeaderValue, secret: &Secret) -> Option<HeaderValue> {
    let secret = secret.expose();
    // With the room that it needs, so that it leaves no copy when it grows.
    let mut value = Zeroizing::new(Vec::with_capacity(before.len() + 2 * secret.len() + 64));
    match place {
        Inject::Header(_) => value.extend_from_slice(secret),
        Inject::Bearer => {
            value.extend_from_slice(scheme(before.to_str().ok()?)?.0.as_bytes());
            value.push(b' ');
            value.extend_from_slice(secret);
        }
        Inject::Basic { user } => {
            let said = basic(before.to_str().ok()?)?.0;
            let user = user.as_ref().unwrap_or(&said);
            let mut pair = Zeroizing::new(Vec::with_capacity(user.len() + 1 + secret.len()));
            pair.extend_from_slice(user.as_bytes());
            pair.push(b':');
            pair.extend_from_slice(secret);
            value.extend_from_slice(b"Basic ");
            let encoded = Zeroizing::new(STANDARD.encode(&*pair));
            value.extend_from_slice(encoded.as_bytes());
        }
    }
    let mut value = HeaderValue::from_bytes(&value).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(at: u8) -> String {
        surrogate::of("", &[at; surrogate::LETTERS])
    }

    fn judged(place: &Inject, target: &str, lines: &[(&str, &str)]) -> Result<Carries, DenialCode> {
        let headers = lines.iter().map(|(name, value)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse::<HeaderValue>().unwrap())
        });
        let mut map = HeaderMap::new();
        headers.for_each(|(name, value)| {
            map.append(name, value);
        });
        judge(place, &one(1), &target.parse().unwrap(), &map, |found| found == one(2))
    }

    #[test]
    fn the_surrogate_is_taken_in_its_place_alone() {
        let (mine, other) = (one(1), one(2));
        let bearer =
            |value: &str| judged(&Inject::Bearer, "/a?b=c", &[("authorization", value), ("accept", "*/*")]);
        assert_eq!(bearer(&format!("Bearer {mine}")), Ok(Carries::Surrogate));
        assert_eq!(bearer(&format!("token {mine}")), Ok(Carries::Surrogate));
        assert_eq!(bearer(&format!("bearer  {mine} ")), Ok(Carries::Surrogate));
        assert_eq!(bearer(&format!("Bearer x{mine}")), Err(DenialCode::CredentialWrongPlace));
        assert_eq!(
            bearer(&format!("Basic {}", STANDARD.encode(format!("u:{mine}")))),
            Err(DenialCode::CredentialWrongPlace)
        );
        assert_eq!(bearer(&format!("Bearer {other}")), Err(DenialCode::CredentialWrongHost));
        assert_eq!(
            bearer(&format!("Bearer {}", one(3))),
            Err(DenialCode::CredentialWrongPlace),
            "another run's"
        );
        assert_eq!(bearer("Bearer ghp_mine"), Err(DenialCode::ForeignCredential));
        assert_eq!(judged(&Inject::Bearer, "/", &[("accept", "*/*")]), Ok(Carries::Nothing));
    }

    #[test]
    fn elsewhere_it_is_in_the_wrong_place() {
        let mine = one(1);
        let bearer = format!("Bearer {mine}");
        for (target, line) in [
            (format!("/x/{mine}"), ("a", "b")),
            (format!("/?t={mine}"), ("a", "b")),
            ("/".into(), ("x-api-key", mine.as_str())),
            ("/".into(), ("user-agent", mine.as_str())),
        ] {
            let judged = judged(&Inject::Bearer, &target, &[("authorization", bearer.as_str()), line]);
            assert_eq!(judged, Err(DenialCode::CredentialWrongPlace), "{target} {line:?}");
        }
    }

    #[test]
    fn what_else_may_be_a_credential_is_foreign() {
        let bearer = format!("Bearer {}", one(1));
        let own = ("authorization", bearer.as_str());
        for line in [("cookie", "a=b"), ("x-api-key", "k"), ("proxy-authorization", "Basic x"), own] {
            assert_eq!(
                judged(&Inject::Bearer, "/", &[own, line]),
                Err(DenialCode::ForeignCredential),
                "{line:?}"
            );
        }
        for target in ["/?access_token=x", "/?a=1&Token=x", "/?x%2Damz%2dsignature=1", "/?a;api_key=1"] {
            assert_eq!(
                judged(&Inject::Bearer, target, &[own]),
                Err(DenialCode::ForeignCredential),
                "{target}"
            );
        }
        for target in ["/?page_token=x", "/?token=", "/token=1"] {
            assert_eq!(judged(&Inject::Bearer, target, &[own]), Ok(Carries::Surrogate), "{target}");
        }
        let header = Inject::Header("X-Api-Key".into());
        let mine = one(1);
        assert_eq!(judged(&header, "/", &[("x-api-key", &mine)]), Ok(Carries::Surrogate));
        assert_eq!(
            judged(&header, "/", &[("x-api-key", &mine), ("authorization", "x y")]),
            Err(DenialCode::ForeignCredential)
        );
    }

    #[test]
    fn the_secret_takes_the_place_of_the_surrogate_and_of_nothing_else() {
        let secret = Secret::new(b"s3cret".to_vec());
        let put = |place: &Inject, before: &str| {
            let value = with_secret(place, &before.parse().unwrap(), &secret).unwrap();
            assert!(value.is_sensitive());
            String::from_utf8(value.as_bytes().to_vec()).unwrap()
        };
        assert_eq!(put(&Inject::Bearer, &format!("token {}", one(1))), "token s3cret");
        assert_eq!(put(&Inject::Header("x-api-key".into()), &one(1)), "s3cret");
        let before = format!("Basic {}", STANDARD.encode(format!("me:{}", one(1))));
        assert_eq!(
            put(&Inject::Basic { user: None }, &before),
            format!("Basic {}", STANDARD.encode("me:s3cret"))
        );
        let user = Inject::Basic { user: Some("git".into()) };
        assert_eq!(put(&user, &before), format!("Basic {}", STANDARD.encode("git:s3cret")));
        assert!(
            with_secret(
                &Inject::Bearer,
                &HeaderValue::from_static("Bearer x"),
                &Secret::new(b"a\nb".to_vec())
            )
            .is_none()
        );
    }
}
