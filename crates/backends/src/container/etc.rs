//! The `/etc` of a sandbox: made, with the few things of the host's that programs need and that
//! anybody may read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Something in the made `/etc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The host's own, read-only.
    Host(PathBuf),
    /// A link.
    Link(PathBuf, PathBuf),
    /// A file with this text.
    Text(&'static str, String),
}

/// Files and folders of the host's `/etc` that are shown where they exist and are for everybody.
/// Each is a place into which `/usr` links or where programs look for data that isn't a setting of
/// this host's.
const SHOWN: [&str; 18] = [
    "ImageMagick-6",   // policy of the image tools
    "X11",             // names of colours, for toolkits
    "alternatives",    // what /usr/bin's own links go through
    "ca-certificates", // certificates, on Arch
    "fonts",           // for everything that draws text
    "groff",           // for man and its like
    "ld.so.cache",     // where the dynamic linker finds libraries
    "locale.alias",    // linked from /usr/share/locale
    "magic",           // for file(1)
    "maven",           // linked from /usr/share/maven
    "mime.types",      // Python's mimetypes reads it
    "pki/ca-trust",    // certificates, on Fedora
    "pki/tls",         // the same, older
    "protocols",       // getprotobyname
    "services",        // getservbyname
    "ssl/certs",       // certificates, on Debian
    "ssl/openssl.cnf", // without it openssl(1) warns
    "xml",             // catalogs, for xmllint and its like
];

/// What the names of further such folders start with: settings that a Java or Python linked from
/// `/usr/lib` doesn't start without.
const SHOWN_PREFIXES: [&str; 3] = ["java-", "perl", "python3"];

/// Links of the host's `/etc` that are kept as links, if they lead into `/usr`.
const LINKS: [&str; 2] = ["localtime", "os-release"];

/// Everything in the made `/etc`.
pub(super) fn entries(user: u32) -> Vec<Entry> {
    let host = Path::new("/etc");
    let mut entries = made(user);
    entries
        .extend(SHOWN.iter().map(|name| host.join(name)).filter(|path| for_everybody(path)).map(Entry::Host));
    entries.extend(prefixed(host).map(Entry::Host));
    for name in LINKS {
        let path = host.join(name);
        match fs::read_link(&path) {
            Ok(target) if into_usr(&target) => entries.push(Entry::Link(target, path)),
            _ if for_everybody(&path) => entries.push(Entry::Host(path)),
            _ => {}
        }
    }
    entries
}

fn made(user: u32) -> Vec<Entry> {
    let text = |name, text: String| Entry::Text(name, text);
    vec![
        text(
            "passwd",
            format!(
                "root:x:0:0:root:/nonexistent:/usr/sbin/nologin\n\
                 user:x:{user}:{user}:user:/home/user:/bin/sh\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
            ),
        ),
        text("group", format!("root:x:0:\nuser:x:{user}:\nnogroup:x:65534:\n")),
        text("hostname", "cofferdam\n".into()),
        text("hosts", "127.0.0.1 localhost cofferdam\n::1 localhost\n".into()),
        text(
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n".into(),
        ),
        text("resolv.conf", "# This sandbox has no name server.\n".into()),
    ]
}

/// The host's folders whose names start with one of [`SHOWN_PREFIXES`].
fn prefixed(host: &Path) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(host).into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        SHOWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && for_everybody(path)
    })
}

/// Whether everybody on the host may read a file or enter a folder.
fn for_everybody(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| {
        let needed = if found.is_dir() { 0o005 } else { 0o004 };
        found.permissions().mode() & needed == needed
    })
}

/// Whether a link in `/etc` leads into `/usr`, which is the same inside.
fn into_usr(target: &Path) -> bool {
    (target.starts_with("/usr") || target.starts_with("../usr"))
        && !target.components().skip(2).any(|part| part.as_os_str() == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_is_not_for_everybody_is_shown() {
        for entry in entries(1000) {
            if let Entry::Host(path) = entry {
                assert!(for_everybody(&path), "{}", path.display());
                assert!(!path.ends_with("shadow") && !path.ends_with("private"));
            }
        }
        assert!(!for_everybody(Path::new("/etc/shadow")));
    }

    #[test]
    fn a_link_out_of_usr_is_not_kept() {
        assert!(into_usr(Path::new("/usr/share/zoneinfo/UTC")));
        assert!(into_usr(Path::new("../usr/lib/os-release")));
        assert!(!into_usr(Path::new("/usr/../root/secret")));
        assert!(!into_usr(Path::new("/root/secret")));
    }
}
