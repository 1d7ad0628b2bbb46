//! What in a request may be a credential, by its name. On a host for which a run has a credential of its own, whatever else
//! may be one is refused: an attacker's own key for an allowed host is a way out.

/// Whether a header of this name may hold a credential. By what the HTTP standards and the documentations of APIs call
/// them, so a name that nobody would think of passes.
#[must_use]
pub fn may_hold_a_credential(header: &str) -> bool {
    /// Words of names that end in `token` and are none.
    const NO_TOKENS: [&str; 5] =
        ["continuation-token", "csrf-token", "next-token", "page-token", "xsrf-token"];
    const PARTS: [&str; 18] = [
        "access-key",
        "api-key",
        "apikey",
        "app-key",
        "application-key",
        "auth-key",
        "authorization",
        "cookie",
        "credential",
        "functions-key",
        "jfrog-art-api",
        "password",
        "secret",
        "session-id",
        "session-key",
        "signature",
        "subscription-key",
        "x-auth-",
    ];
    let name = header.to_ascii_lowercase().replace('_', "-");
    let is_token = name.ends_with("token") && !NO_TOKENS.iter().any(|known| name.ends_with(known));
    is_token || PARTS.iter().any(|part| name.contains(part))
}

/// Whether a query has a parameter with a value that may be a credential, or a signature made with one.
#[must_use]
pub fn query_may_hold_a_credential(query: &str) -> bool {
    const NAMES: [&str; 6] = ["auth", "jwt", "passwd", "pwd", "sig", "token"];
    const PARTS: [&str; 15] = [
        "access-token",
        "accesskeyid",
        "accesstoken",
        "api-key",
        "apikey",
        "api-token",
        "auth-token",
        "authtoken",
        "client-secret",
        "credential",
        "googleaccessid",
        "oauth-token",
        "password",
        "private-token",
        "signature",
    ];
    /// As long as a key is, and longer than most names and words that are looked up by one.
    const KEY: usize = 20;
    query.split(['&', ';']).filter_map(|parameter| parameter.split_once('=')).any(|(name, value)| {
        let name = percent_decoded(name).to_ascii_lowercase().replace(['_', '.'], "-");
        let is_named = NAMES.contains(&name.as_str())
            || name == "x-amz-security-token"
            || PARTS.iter().any(|part| name.contains(part));
        !value.is_empty() && (is_named || (name == "key" && value.len() >= KEY))
    })
}

fn percent_decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (vec![], text.as_bytes());
    while let Some((&byte, after)) = rest.split_first() {
        let digits = (byte == b'%').then(|| after.get(..2)).flatten();
        let digits = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(digits.unwrap_or(byte));
        rest = if digits.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_are_known_however_they_are_written() {
        for name in [
            "Authorization",
            "proxy-authorization",
            "Cookie",
            "X-Api-Key",
            "X_Api_Key",
            "apikey",
            "Private-Token",
            "X-Figma-Token",
            "DD-API-KEY",
            "DD-APPLICATION-KEY",
            "X-JFrog-Art-Api",
            "Circle-Token",
            "X-NuGet-ApiKey",
            "Ocp-Apim-Subscription-Key",
            "X-Amz-Security-Token",
            "X-Goog-Api-Key",
            "X-Auth-Key",
            "X-Hub-Signature-256",
        ] {
            assert!(may_hold_a_credential(name), "{name}");
        }
        for name in
            ["accept", "idempotency-key", "x-ms-continuation-token", "x-csrf-token", "user-agent", "if-match"]
        {
            assert!(!may_hold_a_credential(name), "{name}");
        }
    }

    #[test]
    fn parameters_are_known_by_their_names_and_keys_by_their_length() {
        for query in [
            "access_token=x",
            "a=1&Token=x",
            "x%2Damz%2dsignature=1",
            "a;api_key=1",
            "key=AIzaSyD-0123456789abcdef",
            "AWSAccessKeyId=x&Signature=y",
            "GoogleAccessId=x",
            "oauth_token=x",
            "access.token=x",
            "X-Amz-Security-Token=x",
        ] {
            assert!(query_may_hold_a_credential(query), "{query}");
        }
        for query in ["", "page_token=x", "token=", "key=name", "q=token", "nextToken=x"] {
            assert!(!query_may_hold_a_credential(query), "{query}");
        }
    }
}
