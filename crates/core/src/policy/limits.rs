//! Ceilings on one run, each with its unit and its default.

use std::fmt;
use std::time::Duration;

/// Ceilings on one run. All are enforced or refused; none is ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Wall-clock time of the program, from its start. Everything is killed at its end.
    pub timeout: Duration,
    /// Time between SIGTERM and the kill at the deadline. Zero sends no SIGTERM.
    pub grace: Duration,
    /// Memory of everything inside together, in bytes, swap excluded (there is none).
    pub memory_bytes: u64,
    /// Processor time per second of wall-clock time.
    pub cpus: Cpus,
    /// Processes and threads of the program.
    pub pids: u32,
    /// Bytes in all writable places together; none means half of the memory.
    pub disk_bytes: Option<u64>,
    /// Files, directories and links in all writable places together.
    pub files: u64,
    /// Bytes of standard output and standard error together after which the run is ended.
    pub output_bytes: Option<u64>,
    /// Bytes that leave over the network. What comes in isn't counted.
    pub bytes_out: u64,
    /// HTTP requests.
    pub requests: u64,
    /// Connections to other hosts that are open at once.
    pub connections: u64,
    /// Different hosts that are asked for.
    pub hosts: u64,
}

impl Limits {
    /// What holds where nobody said otherwise.
    pub const DEFAULT: Limits = Limits {
        timeout: Duration::from_secs(300),
        grace: Duration::ZERO,
        memory_bytes: 1 << 30,
        cpus: Cpus::ONE,
        pids: 256,
        disk_bytes: None,
        files: 100_000,
        output_bytes: None,
        bytes_out: 100 << 20,
        requests: 1000,
        connections: 256,
        hosts: 200,
    };

    /// The quota on bytes written: the one asked for, or half of the memory, since writable space
    /// is memory.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.disk_bytes.unwrap_or(self.memory_bytes / 2)
    }
}

/// An amount of processor time per second of wall-clock time, in thousandths of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus {
    thousandths: u32,
}

impl Cpus {
    /// One whole core.
    pub const ONE: Cpus = Cpus { thousandths: 1000 };

    /// The smallest share that the kernel's bandwidth control takes with a period of 100 ms: its
    /// quota can't be below 1 ms (`min_cfs_quota_period` in `kernel/sched/core.c`).
    pub const MIN: Cpus = Cpus { thousandths: 10 };

    /// So many thousandths of a core, if that is at least [`Cpus::MIN`].
    #[must_use]
    pub fn from_thousandths(thousandths: u32) -> Option<Cpus> {
        (thousandths >= Cpus::MIN.thousandths).then_some(Cpus { thousandths })
    }

    /// So many cores, if that is a number of at least [`Cpus::MIN`] and at most a million.
    #[must_use]
    pub fn from_cores(cores: f64) -> Option<Cpus> {
        // No range contains NaN, so that is refused too.
        if !(0.01..=1e6).contains(&cores) {
            return None;
        }
        Cpus::from_thousandths((cores * 1000.0).round() as u32)
    }

    /// The share in thousandths of a core.
    #[must_use]
    pub fn thousandths(self) -> u32 {
        self.thousandths
    }

    /// The number of cores that a program sees: the share, rounded up.
    #[must_use]
    pub fn visible_cores(self) -> u32 {
        self.thousandths.div_ceil(1000)
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.thousandths) / 1000.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_cores_are_rounded_up() {
        let seen = |cores| Cpus::from_cores(cores).unwrap().visible_cores();
        assert_eq!((seen(0.01), seen(1.0), seen(1.001), seen(2.5)), (1, 1, 2, 3));
    }

    #[test]
    fn a_share_that_is_no_share_is_refused() {
        for cores in [0.0, -1.0, 0.001, f64::NAN, f64::INFINITY, 1e9] {
            assert_eq!(Cpus::from_cores(cores), None, "{cores}");
        }
    }
}
