//! The `/etc` of a sandbox: made, with the few things of the host's that programs need and that
//! anybody may read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Something in the made `/etc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The host's own, read-only.
    Host {
        /// Where it is.
        path: PathBuf,
        /// Whether it is a folder.
        folder: bool,
    },
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

/// Where Java lives. `java-17-openjdk-amd64` there has its settings in `/etc/java-17-openjdk`, and
/// doesn't start without them.
const JAVA: &str = "/usr/lib/jvm";

/// Links of the host's `/etc` that are kept as links, if they lead into `/usr`.
const LINKS: [&str; 2] = ["localtime", "os-release"];

/// Everything in the made `/etc`. Without a name server no name is found.
pub(super) fn entries(user: u32, name_server: Option<&str>) -> Vec<Entry> {
    let host = Path::new("/etc");
    let mut entries = made(user, name_server);
    entries.extend(SHOWN.iter().filter_map(|name| shown(host.join(name))));
    entries.extend(java_settings());
    for name in LINKS {
        let path = host.join(name);
        match fs::read_link(&path) {
            Ok(target) if into_usr(&target) => entries.push(Entry::Link(target, path)),
            _ => entries.extend(shown(path)),
        }
    }
    entries
}

fn made(user: u32, name_server: Option<&str>) -> Vec<Entry> {
    let servers = match name_server {
        Some(address) => format!("nameserver {address}\n"),
        None => "# This sandbox has no name server.\n".to_owned(),
    };
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
        text("resolv.conf", servers),
    ]
}

/// The folders of `/etc` that hold the settings of the host's Javas.
fn java_settings() -> Vec<Entry> {
    const KIND: &str = "-openjdk";
    let names = fs::read_dir(JAVA).into_iter().flatten().flatten().filter_map(|java| {
        let name = java.file_name().into_string().ok()?;
        let end = name.find(KIND)? + KIND.len();
        name.starts_with("java-").then(|| name[..end].to_owned())
    });
    let mut folders: Vec<_> = names.map(|name| Path::new("/etc").join(name)).collect();
    folders.sort();
    folders.dedup();
    folders.into_iter().filter_map(shown).collect()
}

/// Something of the host's, if it is there and everybody may read it or enter it.
fn shown(path: PathBuf) -> Option<Entry> {
    let found = fs::metadata(&path).ok()?;
    let needed = if found.is_dir() { 0o005 } else { 0o004 };
    let everybodys = found.permissions().mode() & needed == needed;
    everybodys.then(|| Entry::Host { path, folder: found.is_dir() })
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
        assert_eq!(shown("/etc/shadow".into()), None);
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(shown(folder.path().to_owned()), None);
        assert!(shown("/etc/ld.so.cache".into()).is_some());
        let all = entries(1000, None);
        let names =
            |word| all.iter().any(|entry| matches!(entry, Entry::Host { path, .. } if path.ends_with(word)));
        assert!(names("ld.so.cache") && !names("shadow") && !names("private"));
    }

    #[test]
    fn a_link_out_of_usr_is_not_kept() {
        assert!(into_usr(Path::new("/usr/share/zoneinfo/UTC")));
        assert!(into_usr(Path::new("../usr/lib/os-release")));
        assert!(!into_usr(Path::new("/usr/../root/secret")));
        assert!(!into_usr(Path::new("/root/secret")));
    }
}
