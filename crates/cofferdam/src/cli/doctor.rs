//! `cofferdam doctor`: what this machine can run, what it can enforce, why not, and how to mend it.
//!
//! - [`findings`]: everything that is reported, which is also the JSON.
//! - [`boundaries`]: the backends, tried where they can be, and which profile gets which.
//! - [`exposure`]: what code would inherit here without Cofferdam (`--exposure`).
//! - [`host`]: the kernel and what it shows of itself.
//! - [`folders`]: the state, the audit log and the node's settings.
//! - [`runtimes`]: other runtimes on the path, and whether they are below their security floor.
//! - [`way_out`]: what leads out of a container.
//! - [`credentials`]: who mints for runs, tried if that is asked for (`--issuers`).
//! - [`page`]: the findings as a person reads them.
//! - `pythons`: what is prepared for WebAssembly.
//!
//! Nothing is changed by looking: no folder is made, no cgroup, and the one sandbox that is started
//! has none of either. With `--issuers` alone something is made elsewhere, and revoked again.

mod boundaries;
mod credentials;
mod exposure;
mod findings;
mod folders;
mod host;
mod page;
#[cfg(feature = "wasm")]
mod pythons;
mod runtimes;
mod way_out;

#[cfg(not(feature = "wasm"))]
mod pythons {
    /// There is nothing that could be prepared.
    pub(super) fn look(_: &std::path::Path) -> Option<super::PythonsFound> {
        None
    }
}

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use cofferdam_backends::container::Host;
use cofferdam_core::policy::Profile;

use super::Failure;
use boundaries::Boundaries;
use findings::{CredentialsFound, Findings, FolderFound, Node, PythonsFound, Trouble, WayOutFound};
use page::Paint;

/// What `doctor` can be asked.
#[derive(Clone, Debug, Args)]
pub(super) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show what code that runs here without Cofferdam would inherit: secrets, agents, sockets
    #[arg(long)]
    exposure: bool,
    /// Have each issuer of issuers.toml mint a credential, and see that it works and dies, as `credential test` does
    #[arg(long, conflicts_with = "exposure")]
    issuers: bool,
    /// The profile that the exposure is held against: what would a run of it still have
    #[arg(long, value_name = "NAME", requires = "exposure", value_parser = super::options::parse::<Profile>)]
    #[arg(default_value = "internal")]
    profile: Profile,
}

/// Looks at this machine and prints what was found. Exit code 0 whatever that is: it is a report.
///
/// # Errors
///
/// Where `out` can't be written.
pub(super) fn main(args: &DoctorArgs, out: &mut dyn Write) -> Result<u8, Failure> {
    let ground = Ground::look();
    if args.exposure {
        return exposure::main(args.json, args.profile, &ground.boundaries, out);
    }
    let findings = ground.findings(credentials::look(args.issuers));
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &findings).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        page::print(&findings, &Paint::of(crate::report::colours(&io::stdout())), out)?;
    }
    Ok(0)
}

/// What every report stands on: the backends, and the files without which nothing runs.
struct Ground {
    container: Host,
    boundaries: Boundaries,
    state: FolderFound,
    audit: FolderFound,
    node: Node,
    pythons: Option<PythonsFound>,
    way_out: WayOutFound,
}

impl Ground {
    fn look() -> Self {
        let (trouble, settings) = match super::node() {
            Ok(settings) => (crate::egress::trouble(&settings).map(Trouble::from), settings),
            // A run would be refused; where its state would be is still worth saying.
            Err(error) => (
                Some(Trouble::new(error.summary(), format!("node.toml: {}", error.fix()))),
                crate::files::Node::default(),
            ),
        };
        let folder = crate::host::state_folder(&settings);
        let state = folders::state(&folder);
        let audit = folders::audit(&folder, &state);
        let node = settings_of(trouble);
        let stops = [("node", &node.trouble), ("state", &state.trouble), ("audit", &audit.trouble)];
        let stops = stops.into_iter().filter_map(|(name, trouble)| Some((name, trouble.clone()?))).collect();
        let mut container = Host::look();
        container.look_at_captures(&folder);
        let way_out = way_out::look(&container, &settings);
        let boundaries = Boundaries::look(&container, &folder, settings.ceiling, stops);
        let pythons = pythons::look(&folder);
        Ground { container, boundaries, state, audit, node, pythons, way_out }
    }

    fn findings(self, credentials: CredentialsFound) -> Findings {
        let Ground { container, boundaries, state, audit, node, pythons, way_out } = self;
        Findings {
            version: 1,
            cofferdam: env!("CARGO_PKG_VERSION"),
            profiles: boundaries.profiles(),
            backends: boundaries.backends(),
            pythons,
            runtimes: runtimes::look(std::env::var_os("PATH").as_deref()),
            way_out,
            credentials,
            host: host::look(&container),
            state,
            audit,
            node,
            fixes: boundaries.fixes(),
        }
    }
}

fn settings_of(trouble: Option<Trouble>) -> Node {
    let places = crate::host::operator_files("node.toml");
    let text = |path: &PathBuf| path.to_string_lossy().into_owned();
    let file = places.iter().find(|path| path.symlink_metadata().is_ok()).map(text);
    Node { file, places: places.iter().map(text).collect(), trouble }
}
