//! The most that a program may take of what the engine gives out.

use wasmtime::ResourceLimiter;

/// Counts what a program has, and refuses what would be too much.
#[derive(Debug)]
pub(super) struct Limits {
    /// Most linear memory, all of the program's memories together.
    memory_bytes: usize,
    used_bytes: usize,
    /// Whether the last thing that it asked for was more than its limit, not than its own maximum.
    refused: bool,
}

/// Most elements of one table.
const TABLE_ELEMENTS: usize = 1 << 20;

impl Limits {
    pub(super) fn new(memory_bytes: u64) -> Self {
        let memory_bytes = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
        Limits { memory_bytes, used_bytes: 0, refused: false }
    }

    /// Whether the program was refused memory, and has had none since.
    pub(super) fn refused(&self) -> bool {
        self.refused
    }
}

impl ResourceLimiter for Limits {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let used_bytes = self.used_bytes.saturating_sub(current).saturating_add(desired);
        self.refused = used_bytes > self.memory_bytes;
        let granted = !self.refused && desired <= maximum.unwrap_or(usize::MAX);
        if granted {
            self.used_bytes = used_bytes;
        }
        Ok(granted)
    }

    fn table_growing(&mut self, _: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS.min(maximum.unwrap_or(usize::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_memories_together_stay_below_the_limit() {
        let mut limits = Limits::new(100);
        assert!(limits.memory_growing(0, 60, None).unwrap());
        assert!(limits.memory_growing(0, 40, None).unwrap());
        assert!(!limits.memory_growing(60, 61, None).unwrap());
        assert!(limits.refused());
        assert!(limits.memory_growing(40, 40, None).unwrap());
        assert!(!limits.refused());
        assert!(!limits.memory_growing(40, 41, Some(40)).unwrap_or(true));
    }

    #[test]
    fn a_modules_own_maximum_is_no_limit_of_ours() {
        let mut limits = Limits::new(100);
        assert!(!limits.memory_growing(0, 60, Some(50)).unwrap());
        assert!(!limits.refused());
    }
}
