//! What a product left on the host, told from what other products do there meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

use crate::host::{Snapshot, pids};
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
    // A run of ours is in the log, but for one that was parked, whose file says that it is ours.
    let parked = names(&product.state().join(RUNS));
    let ours = |item: &String| {
        let run = item.split_once("/cofferdam-").and_then(|(_, run)| run.split(['/', '"']).next());
        run.is_none_or(|run| log.contains(run) || parked.iter().any(|name| run.contains(name.as_str())))
    };
    let mut left = Snapshot::take().new_since(before);
    left.retain(ours);
    left.extend(processes(product));
    for folder in [RUNS, "disks"] {
        let names = names(&product.state().join(folder));
        left.extend(names.into_iter().map(|name| format!("{folder}/{name} in the state folder")));
    }
    let agents = names(&product.state().join("agent"));
    left.extend(agents.into_iter().skip(1).map(|name| format!("agent/{name} in the state folder")));
    left.extend(loop_devices(product.folder()));
    left
}

/// Processes that are this product's by its state folder, which all that it starts are told of, or that
/// execute, work in or hold something below its folder.
fn processes(product: &Product) -> Vec<String> {
    let told = [b"COFFERDAM_STATE=", product.state().as_os_str().as_encoded_bytes()].concat();
    let is_told = |pid: i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == told)
    };
    let is_below = |pid: i32| {
        let fixed = ["exe", "cwd", "root"].map(|name| PathBuf::from(format!("/proc/{pid}/{name}")));
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = fixed.into_iter().chain(open.map(|entry| entry.path()));
        links.any(|link| fs::read_link(link).is_ok_and(|path| path.starts_with(product.folder())))
    };
    let own = std::process::id() as i32;
    let ours = pids().filter(|pid| *pid != own && (is_told(*pid) || is_below(*pid)));
    ours.map(|pid| {
        format!(
            "process {pid}: {}",
            fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim()
        )
    })
    .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::product::start;

    #[test]
    fn a_process_of_ours_is_told_by_its_variables_and_by_where_it_works() {
        let folder = tempfile::tempdir().unwrap();
        let product = Product::new(folder.path().join("cofferdam").to_str().unwrap());
        assert_eq!(processes(&product), [] as [String; 0]);
        let told = start(&mut sleeping_as(&product.command(["20"])));
        let mut works = std::process::Command::new("sleep");
        let works = start(works.arg("20").current_dir(product.folder()));
        let found = processes(&product);
        for pid in [told.id(), works.id()] {
            assert!(found.contains(&format!("process {pid}: sleep")), "{found:?}");
        }
        assert_eq!(found.len(), 2, "{found:?}");
    }

    /// `sleep` with the variables and words of a command.
    fn sleeping_as(command: &std::process::Command) -> std::process::Command {
        let mut sleep = std::process::Command::new("sleep");
        let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        sleep.args(command.get_args()).envs(set);
        sleep
    }
}
