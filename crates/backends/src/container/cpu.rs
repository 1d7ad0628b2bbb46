//! What a program sees of the processors: as many as it may use.
//!
//! The ceiling itself is the cgroup's. This is so that programs which ask for the number of cores
//! (`nproc`, `os.cpu_count()`, `os.cpus()`) start as many threads as can run, not as the host has.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_core::policy::Cpus;
use cofferdam_sys::{fd, process};

/// The processors of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The host's cores that the sandbox runs on.
    pub(super) cores: Vec<usize>,
}

impl View {
    /// Chooses as many cores as the share needs, rounded up, beginning at a random one: if every
    /// one-core sandbox began at the first, all would share it. The core that we are on comes last:
    /// we have work to do while the sandbox starts.
    pub(super) fn choose(share: Cpus) -> Self {
        let mut allowed = process::allowed_cores().unwrap_or_default();
        let count = (share.visible_cores() as usize).min(allowed.len());
        let first = fd::random_bytes::<4>().map_or(0, u32::from_ne_bytes) as usize;
        let turn = first % allowed.len().max(1);
        allowed.rotate_left(turn);
        let current = process::current_core();
        allowed.sort_by_key(|core| Some(*core) == current); // stable: the others keep their order
        let mut cores = allowed[..count].to_vec();
        cores.sort_unstable();
        View { cores }
    }

    /// How many there are.
    fn count(&self) -> usize {
        self.cores.len().max(1)
    }

    /// `/sys/devices/system/cpu/online` and its like.
    pub(super) fn range(&self) -> String {
        match self.count() {
            1 => "0\n".into(),
            count => format!("0-{}\n", count - 1),
        }
    }

    /// `/proc/stat`, with times at zero: what the host's cores did is nobody's business inside.
    pub(super) fn stat(&self) -> String {
        let mut text = String::from("cpu  0 0 0 0 0 0 0 0 0 0\n");
        for core in 0..self.count() {
            let _ = writeln!(text, "cpu{core} 0 0 0 0 0 0 0 0 0 0"); // a String takes everything
        }
        let _ = write!(text, "intr 0\nctxt 0\nbtime {}\n", boot_time().as_secs());
        text.push_str("processes 0\nprocs_running 1\nprocs_blocked 0\nsoftirq 0\n");
        text
    }

    /// `/proc/cpuinfo`: the host's own, as far as the first of so many cores.
    pub(super) fn cpuinfo(&self) -> String {
        File::open("/proc/cpuinfo")
            .map_or_else(|_| String::new(), |file| self.first_blocks(BufReader::new(file)))
    }

    /// The first blocks of a text in which an empty line ends a block.
    fn first_blocks(&self, text: impl BufRead) -> String {
        let mut kept = String::new();
        let mut blocks = 0;
        for line in text.lines().map_while(Result::ok) {
            kept.push_str(&line);
            kept.push('\n');
            if line.is_empty() {
                blocks += 1;
                if blocks == self.count() {
                    break;
                }
            }
        }
        kept
    }
}

/// When the host booted, since the epoch.
fn boot_time() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(process::time_since_boot())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(count: usize) -> View {
        View { cores: (0..count).collect() }
    }

    #[test]
    fn every_file_tells_the_same_number() {
        assert_eq!(view(1).range(), "0\n");
        assert_eq!(view(3).range(), "0-2\n");
        assert_eq!(view(3).stat().lines().filter(|line| line.starts_with("cpu")).count(), 4);
        let text = "processor\t: 0\nx\n\nprocessor\t: 1\nx\n\nprocessor\t: 2\nx\n\n";
        assert_eq!(view(2).first_blocks(text.as_bytes()).matches("processor").count(), 2);
    }

    #[test]
    fn one_core_runs_are_spread_over_the_host() {
        let allowed = process::allowed_cores().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..64 * allowed.len() {
            let view = View::choose(Cpus::ONE);
            assert_eq!(view.cores.len(), 1);
            seen.extend(view.cores);
        }
        // All but the one that this test is on, unless it moved meanwhile.
        assert!(seen.len() >= allowed.len() - 1 && seen.iter().all(|core| allowed.contains(core)));
    }

    #[test]
    fn more_cores_than_the_host_has_are_not_made_up() {
        let allowed = process::allowed_cores().unwrap();
        assert_eq!(View::choose(Cpus::from_cores(1000.0).unwrap()).cores, allowed);
    }
}
