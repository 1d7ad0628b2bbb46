//! What a program sees of the processors: as many as it may use.
//!
//! The ceiling itself is the cgroup's. This is so that programs which ask for the number of cores
//! (`nproc`, `os.cpu_count()`, `os.cpus()`) start as many threads as can run, not as the host has.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cofferdam_core::policy::Cpus;
use cofferdam_sys::{fd, process};

/// The host's cores that a sandbox runs on, as long as this is kept.
#[derive(Debug)]
pub(super) struct Cores(Vec<usize>);

/// How many sandboxes of this process run on each core.
static TAKEN: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

impl Cores {
    /// Chooses as many cores as the share needs, rounded up: those on which the fewest other sandboxes
    /// of ours are, so that a sandbox which is made ahead doesn't slow the program down that runs. Of
    /// equal ones a random one: other processes choose as well. The core that we are on comes last: we
    /// have work to do while the sandbox starts.
    pub(super) fn choose(share: Cpus) -> Self {
        let mut allowed = process::allowed_cores().unwrap_or_default();
        let count = (share.visible_cores() as usize).min(allowed.len());
        let first = fd::random_bytes::<4>().map_or(0, u32::from_ne_bytes) as usize;
        let turn = first % allowed.len().max(1);
        allowed.rotate_left(turn);
        let mut taken = taken();
        let cores = least_taken(&taken, allowed, process::current_core(), count);
        for core in &cores {
            *taken.entry(*core).or_default() += 1;
        }
        Cores(cores)
    }

    pub(super) fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// Leaves them to others: nothing runs on them any more.
    pub(super) fn free(&mut self) {
        let mut taken = taken();
        for core in self.0.drain(..) {
            if let Some(count) = taken.get_mut(&core) {
                *count = count.saturating_sub(1);
            }
        }
    }
}

/// So many of some cores. Of equal ones the first, and the current one last.
fn least_taken(
    taken: &BTreeMap<usize, usize>,
    mut cores: Vec<usize>,
    current: Option<usize>,
    count: usize,
) -> Vec<usize> {
    let others = |core: &usize| taken.get(core).copied().unwrap_or(0);
    cores.sort_by_key(|core| (others(core), Some(*core) == current)); // stable
    cores.truncate(count);
    cores.sort_unstable();
    cores
}

impl Drop for Cores {
    fn drop(&mut self) {
        self.free();
    }
}

fn taken() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is seen of so many cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    cores: usize,
}

impl View {
    pub(super) fn of(cores: &Cores) -> Self {
        View { cores: cores.0.len() }
    }

    /// How many there are.
    fn count(&self) -> usize {
        self.cores.max(1)
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
        View { cores: count }
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
    fn a_sandbox_is_made_beside_those_that_run_and_not_on_their_cores() {
        let taken = BTreeMap::from([(0, 1), (1, 0), (2, 2)]);
        let choose = |current, count| least_taken(&taken, vec![2, 0, 1, 3], current, count);
        assert_eq!(choose(None, 1), [1]);
        assert_eq!(choose(Some(1), 1), [3], "the current one only after its equals");
        assert_eq!(choose(Some(3), 3), [0, 1, 3], "but before one on which somebody runs");
        assert_eq!(choose(None, 4), [0, 1, 2, 3]);
    }

    #[test]
    fn one_core_runs_are_spread_over_the_host() {
        let allowed = process::allowed_cores().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..64 * allowed.len() {
            let cores = Cores::choose(Cpus::ONE);
            assert_eq!(View::of(&cores), view(1));
            seen.extend(cores.as_slice().to_owned());
        }
        // All but the one that this test is on, unless it moved meanwhile.
        assert!(seen.len() >= allowed.len() - 1 && seen.iter().all(|core| allowed.contains(core)));
    }

    #[test]
    fn more_cores_than_the_host_has_are_not_made_up() {
        let allowed = process::allowed_cores().unwrap();
        assert_eq!(Cores::choose(Cpus::from_cores(1000.0).unwrap()).as_slice(), allowed);
    }
}
