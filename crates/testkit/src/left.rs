//! What a product left on the host, told from what other products do there meanwhile.

use std::fs;
use std::path::Path;

use crate::host::Snapshot;
use crate::product::Product;

/// The folder of runs that are under way, below a state folder.
const RUNS: &str = "runs";

/// Everything that is there now, wasn't at an earlier look, and can be this product's; a line each.
///
/// Namespaces can't be told apart by whose they are: whoever looks while others use the same host does so
/// in a process namespace of its own.
#[must_use]
pub fn left(product: &Product, before: &Snapshot) -> Vec<String> {
    let log = fs::read_to_string(product.state().join("audit/log.ndjson")).unwrap_or_default();
    let ours = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.strip_prefix("cofferdam-").is_none_or(|run| log.contains(run))
    };
    let mut now = Snapshot::take();
    // A run of ours is in the log, but for one that was parked, whose file says that it is ours.
    let parked = names(&product.state().join(RUNS));
    now.cgroups.retain(|path| ours(path) || parked.iter().any(|run| path.to_string_lossy().contains(run)));
    let mut left = now.new_since(before);
    for folder in [RUNS, "disks"] {
        let names = names(&product.state().join(folder));
        left.extend(names.into_iter().map(|name| format!("{folder}/{name} in the state folder")));
    }
    let agents = names(&product.state().join("agent"));
    left.extend(agents.into_iter().skip(1).map(|name| format!("agent/{name} in the state folder")));
    left.extend(loop_devices(product.folder()));
    left
}

/// The names in a folder; none if it isn't there.
#[must_use]
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Loop devices over files below a folder.
fn loop_devices(folder: &Path) -> Vec<String> {
    let file = |name: &String| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok();
    let over = |name: &String| file(name).is_some_and(|file| Path::new(file.trim()).starts_with(folder));
    names(Path::new("/sys/block")).into_iter().filter(over).map(|name| format!("/dev/{name}")).collect()
}
