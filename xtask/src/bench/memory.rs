//! What a running sandbox costs in memory besides the program in it.
//!
//! The figure is the proportional set size (PSS) of Cofferdam's own processes: pages that several of
//! them share count once in the sum. It comes from `/proc/PID/smaps_rollup`, read while a program
//! sleeps in the sandbox, and the largest sum of all readings counts.

use std::collections::HashMap;
use std::fs;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use crate::problem::Problem;

const INTERVAL: Duration = Duration::from_millis(20);

/// Name of the program that sleeps, as the kernel shows it.
const SLEEPER: &str = "sleep";

/// What one process had in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its name, as the kernel shows it.
    pub(crate) name: String,
    /// Its proportional set size.
    pub(crate) pss_kib: u64,
}

/// All own processes at one moment.
pub(crate) type Snapshot = Vec<Process>;

/// Runs `command`, which must run `sleep` in a sandbox, to its end. Gives back the snapshot with the
/// largest sum of those made while the program slept, and how the command ended.
pub(crate) fn peak(command: &mut Command) -> Result<(Snapshot, ExitStatus), Problem> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(Problem::starting(&name))?;
    let watched = watch(&mut child);
    if watched.is_err() {
        // It would outlive us; that it may have ended already is no error.
        let _ = child.kill();
    }
    let status = child.wait().map_err(Problem::starting(&name))?;
    let peak = watched?;
    if peak.is_empty() {
        return Err(Problem::Stop(format!(
            "no process `{SLEEPER}` was seen under {name}, so its memory could not be measured; it ended with {status}"
        )));
    }
    Ok((peak, status))
}

/// The sum of a snapshot.
pub(crate) fn total_mib(snapshot: &[Process]) -> f64 {
    let kib: u64 = snapshot.iter().map(|process| process.pss_kib).sum();
    kib as f64 / 1024.0
}

fn watch(child: &mut Child) -> Result<Snapshot, Problem> {
    let mut peak = Snapshot::new();
    loop {
        if child.try_wait().map_err(Problem::starting("the watch over it"))?.is_some() {
            return Ok(peak);
        }
        if let Some(snapshot) = own_processes(child.id())?
            && total_mib(&snapshot) > total_mib(&peak)
        {
            peak = snapshot;
        }
        thread::sleep(INTERVAL);
    }
}

/// The processes below `root` but for the program; `None` while the program isn't running.
fn own_processes(root: u32) -> Result<Option<Snapshot>, Problem> {
    let parents = parents();
    let family: Vec<u32> = descendants(root, &parents);
    let (programs, own): (Vec<u32>, Vec<u32>) = family.into_iter().partition(|pid| name_of(*pid) == SLEEPER);
    if programs.is_empty() {
        return Ok(None);
    }
    let mut snapshot = Snapshot::new();
    for pid in own {
        let path = format!("/proc/{pid}/smaps_rollup");
        match fs::read_to_string(&path) {
            Ok(text) => snapshot.push(Process { name: name_of(pid), pss_kib: pss_kib(&text) }),
            // It ended meanwhile.
            Err(_) if !fs::exists(format!("/proc/{pid}")).unwrap_or(false) => {}
            Err(source) => return Err(Problem::Io { action: format!("read {path}; run as root"), source }),
        }
    }
    Ok(Some(snapshot))
}

fn descendants(root: u32, parents: &HashMap<u32, u32>) -> Vec<u32> {
    let below = |pid: u32| {
        let line = std::iter::successors(Some(pid), |pid| parents.get(pid).copied());
        // A process table read in pieces could show a circle; no real line is this long.
        line.take(64).any(|ancestor| ancestor == root)
    };
    let mut family: Vec<u32> = parents.keys().copied().filter(|pid| below(*pid)).collect();
    family.sort_unstable();
    family
}

/// The parent of every process.
fn parents() -> HashMap<u32, u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// The parent in a line of `/proc/PID/stat`: the second field after the name, which stands in
/// parentheses and may hold any character.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn name_of(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

fn pss_kib(rollup: &str) -> u64 {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_hide_the_parent() {
        assert_eq!(parent_in("42 (a) b (c)) S 7 42 42 0"), Some(7));
        assert_eq!(parent_in("nonsense"), None);
    }

    #[test]
    fn only_what_is_below_the_root_counts() {
        let parents = HashMap::from([(10, 1), (11, 10), (12, 11), (20, 1), (1, 0)]);
        assert_eq!(descendants(10, &parents), [10, 11, 12]);
    }

    #[test]
    fn the_proportional_set_size_is_found_among_its_parts() {
        let text =
            "00400000-7fff ---p 00000000 00:00 0 [rollup]\nRss:  9000 kB\nPss:  1234 kB\nPss_Anon: 7 kB\n";
        assert_eq!(pss_kib(text), 1234);
    }

    #[test]
    fn a_shell_that_waits_for_sleep_is_measured_without_it() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.3; true"]);
        let (snapshot, status) = peak(&mut command).unwrap();
        assert!(status.success());
        assert_eq!(snapshot.len(), 1);
        assert!(snapshot[0].pss_kib > 0);
    }
}
