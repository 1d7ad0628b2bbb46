//! The node's own settings: where its state is, and what no run on it may exceed.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use cofferdam_core::policy::{Ceiling, HostPattern, LimitsLayer};
use serde::Deserialize;

use super::error::{FileError, Source};
use super::text;
use super::words::{At, Cores, Count, Host, Pids, ProfileName, Size, Time};

/// What the operator of this machine decided for every run on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Node {
    /// Where the state is kept; none means the usual place.
    pub(crate) state: Option<PathBuf>,
    /// The most that a run may ask for.
    pub(crate) ceiling: Ceiling,
    /// Who resolves names for us.
    pub(crate) resolver: Resolver,
    /// Files with certificates that are trusted beyond the system's own.
    pub(crate) extra_roots: Vec<PathBuf>,
    /// A proxy through which everything outbound goes.
    pub(crate) upstream_proxy: Option<String>,
    /// The hosts that a rule may reach at a private address; none means whatever rules say.
    pub(crate) private_hosts: Option<Vec<HostPattern>>,
}

/// Who resolves names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Resolver {
    /// These servers.
    Servers(Vec<SocketAddr>),
    /// Whoever the system asks.
    #[default]
    System,
}

/// `node.toml`, as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct NodeFile {
    state: Option<At<PathBuf>>,
    resolver: Option<ResolverKey>,
    #[serde(default)]
    extra_roots: Vec<At<PathBuf>>,
    upstream_proxy: Option<At<String>>,
    private_hosts: Option<Vec<Host>>,
    #[serde(default)]
    ceiling: CeilingTable,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "\"system\" or a list of addresses with ports such as [\"10.0.0.53:53\"]")]
enum ResolverKey {
    Servers(Vec<SocketAddr>),
    System(System),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum System {
    System,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
struct CeilingTable {
    memory: Option<Size>,
    timeout: Option<Time>,
    cpus: Option<Cores>,
    pids: Option<Pids>,
    disk: Option<Size>,
    files: Option<Count>,
    bytes_out: Option<Size>,
    requests: Option<Count>,
    connections: Option<Count>,
    hosts: Option<Count>,
    profiles: Option<At<Vec<ProfileName>>>,
}

/// Reads the first of these files that is there; defaults where none is.
pub(crate) fn load_node(paths: &[PathBuf]) -> Result<Node, FileError> {
    for path in paths {
        match text::read(path) {
            Ok(text) => return parse(&text.text, &text.source),
            Err(unreadable) if unreadable.is_absent(path) => {}
            Err(unreadable) => return Err(unreadable.into()),
        }
    }
    Ok(Node::default())
}

fn parse(text: &str, source: &Source) -> Result<Node, FileError> {
    let file: NodeFile = toml::from_str(text).map_err(|error| source.toml_error(&error))?;
    if let Some(state) = &file.state {
        refuse_relative(state, source)?;
    }
    file.extra_roots.iter().try_for_each(|root| refuse_relative(root, source))?;
    if let Some(profiles) = file.ceiling.profiles.as_ref().filter(|profiles| profiles.value.is_empty()) {
        let help = "list the profiles that may be used, or remove the key to allow any";
        return Err(source.error(&profiles.span, "without a profile nothing could run", "empty", help));
    }
    if let Some(proxy) = &file.upstream_proxy {
        refuse_bad_proxy(proxy, source)?;
    }
    Ok(Node {
        state: file.state.map(|state| state.value),
        ceiling: ceiling(file.ceiling),
        resolver: match file.resolver {
            Some(ResolverKey::Servers(servers)) => Resolver::Servers(servers),
            Some(ResolverKey::System(System::System)) | None => Resolver::System,
        },
        extra_roots: file.extra_roots.into_iter().map(|root| root.value).collect(),
        upstream_proxy: file.upstream_proxy.map(|proxy| proxy.value),
        private_hosts: file.private_hosts.map(|hosts| hosts.into_iter().map(|host| host.0).collect()),
    })
}

fn ceiling(table: CeilingTable) -> Ceiling {
    let limits = LimitsLayer {
        timeout: table.timeout.map(|time| time.0),
        memory_bytes: table.memory.map(|size| size.0),
        cpus: table.cpus.map(|cores| cores.0),
        pids: table.pids.map(|pids| pids.0),
        disk_bytes: table.disk.map(|size| size.0),
        files: table.files.map(|count| count.0),
        bytes_out: table.bytes_out.map(|size| size.0),
        requests: table.requests.map(|count| count.0),
        connections: table.connections.map(|count| count.0),
        hosts: table.hosts.map(|count| count.0),
        // Neither lets a run take more of this machine, or send more, than the limits above.
        grace: None,
        output_bytes: None,
    };
    let profiles =
        table.profiles.map(|profiles| profiles.value.into_iter().map(|profile| profile.0).collect());
    Ceiling { limits, profiles }
}

/// A relative path would depend on where a command was started.
fn refuse_relative(path: &At<PathBuf>, source: &Source) -> Result<(), FileError> {
    if path.value.is_absolute() {
        return Ok(());
    }
    let absolute = Path::new("/").join(&path.value);
    let help = format!("write an absolute path such as `{}`", absolute.display());
    Err(source.error(&path.span, "the path is relative", "relative to what?", &help))
}

fn refuse_bad_proxy(proxy: &At<String>, source: &Source) -> Result<(), FileError> {
    let authority = proxy.value.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let known = authority.and_then(|authority| authority.rsplit_once(':')).is_some_and(|(host, port)| {
        super::value::host(host).is_ok_and(|host| !host.to_string().starts_with("*."))
            && super::value::port(port).is_ok()
    });
    if known {
        return Ok(());
    }
    let help = "write `http://`, a host and a port: `http://proxy.example:3128`";
    Err(source.error(&proxy.span, "this is not the address of a proxy", "not a proxy", help))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cofferdam_core::policy::{Cpus, Profile};

    use super::*;

    fn read(text: &str) -> Result<Node, FileError> {
        parse(text, &Source::new("node.toml", text))
    }

    #[track_caller]
    fn refused(text: &str, summary: &str) {
        let error = read(text).unwrap_err();
        assert!(error.summary().starts_with(summary), "{}", error.summary());
        assert!(!error.fix().is_empty());
    }

    #[test]
    fn every_key_arrives() {
        let node = read(
            r#"
            state = "/var/lib/cofferdam"
            resolver = ["10.0.0.53:53", "[::1]:53"]
            extra_roots = ["/etc/ssl/corp.pem"]
            upstream_proxy = "http://proxy.corp.example:3128"
            private_hosts = ["db.internal", "mirror.corp.example"]
            [ceiling]
            memory = "4GiB"
            timeout = "1h"
            cpus = 2
            pids = 1000
            disk = "2GiB"
            files = 1_000_000
            bytes_out = "10MiB"
            requests = 100
            connections = 8
            hosts = 5
            profiles = ["untrusted", "internal"]
            "#,
        )
        .unwrap();
        assert_eq!(node.state.as_deref(), Some(Path::new("/var/lib/cofferdam")));
        assert_eq!(
            node.resolver,
            Resolver::Servers(vec!["10.0.0.53:53".parse().unwrap(), "[::1]:53".parse().unwrap()])
        );
        assert_eq!(node.extra_roots, [Path::new("/etc/ssl/corp.pem")]);
        assert_eq!(node.upstream_proxy.as_deref(), Some("http://proxy.corp.example:3128"));
        assert_eq!(node.private_hosts.map(|hosts| hosts.len()), Some(2));
        assert_eq!(node.ceiling.limits.memory_bytes, Some(4 << 30));
        assert_eq!(node.ceiling.limits.cpus, Cpus::from_thousandths(2000));
        assert_eq!(node.ceiling.limits.files, Some(1_000_000));
        let LimitsLayer { bytes_out, requests, connections, hosts, .. } = node.ceiling.limits;
        assert_eq!((bytes_out, requests, connections, hosts), (Some(10 << 20), Some(100), Some(8), Some(5)));
        assert_eq!(node.ceiling.profiles, Some([Profile::Internal, Profile::Untrusted].into()));
        assert_eq!(read("resolver = \"system\"").unwrap().resolver, Resolver::System);
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_place() {
        refused("[ceiling]\nmemroy = \"1GiB\"\n", "node.toml:2:1: unknown key `memroy`");
        refused("[ceiling]\nbytes_out = 4\n", "node.toml:2:13: `4` has no unit");
        refused("[ceiling]\nhosts = -1\n", "node.toml:2:9: ");
        refused("[ceiling]\nmemory = 4\n", "node.toml:2:10: `4` has no unit");
        refused("[ceiling]\nprofiles = []\n", "node.toml:2:12: without a profile");
        refused("[ceiling]\nprofiles = [\"any\"]\n", "node.toml:2:13: `any` is not a profile");
        refused("[ceiling]\ngrace = \"1s\"\n", "node.toml:2:1: unknown key `grace`");
        refused("state = \"here\"\n", "node.toml:1:9: the path is relative");
        refused("extra_roots = [\"/a\", \"b\"]\n", "node.toml:1:22: the path is relative");
        refused("resolver = \"10.0.0.53\"\n", "node.toml:1:12: ");
        refused("resolver = [\"10.0.0.53\"]\n", "node.toml:1:12: ");
        refused("private_hosts = [\"*\"]\n", "node.toml:1:18: `*` is too broad");
        for proxy in
            ["proxy:3128", "http://proxy", "http://proxy:0", "http://u:p@proxy:1", "http://proxy:1/x", ""]
        {
            refused(&format!("upstream_proxy = \"{proxy}\"\n"), "node.toml:1:18: this is not the address");
        }
    }

    #[test]
    fn the_first_file_that_is_there_is_the_one() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["none", "first", "second"].map(|name| folder.path().join(name));
        assert_eq!(load_node(&paths).unwrap(), Node::default());
        fs::write(&paths[2], "state = \"/second\"").unwrap();
        fs::write(&paths[1], "state = \"/first\"").unwrap();
        assert_eq!(load_node(&paths).unwrap().state.as_deref(), Some(Path::new("/first")));
        fs::write(&paths[1], "state = 1").unwrap();
        assert!(load_node(&paths).is_err(), "a file that is there is not passed over");
    }
}
