//! How the engine is set: the same where something is prepared and where it runs, since a prepared file
//! is native code that relies on it. Wasmtime refuses a file that was made with other settings.

use std::fmt;
use std::fs::File;
use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};
use wasmtime::{Collector, Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

/// The stack of a program, in bytes. Python's own guard against deep recursion looks at another, which lies in the
/// program's memory and is small; what uses nothing of that, as freeing nested lists does, has this one alone:
/// lists 100,000 deep fit.
pub(super) const STACK_BYTES: usize = 32 << 20;

/// What our own functions may use on top of that, in bytes, when a program calls them.
pub(super) const HOST_STACK_BYTES: usize = 2 << 20;

/// The most linear memory that a program can have, in bytes: what 32 bits can address. Its own limit is
/// lower, mostly.
const ADDRESSABLE_BYTES: usize = 4 << 30;

/// Most memory of a program's that keeps its pages when it is wiped, in bytes.
const RESIDENT_BYTES: usize = 4 << 20;

/// Most core modules in one component. Large ones, of languages that link at load, have about 20.
const COMPONENT_INSTANCES: u32 = 64;

/// Most bytes of one instance's own state. NumPy and pandas linked into Python have 100,000 functions.
const INSTANCE_BYTES: usize = 32 << 20;

/// Most elements of one table: the functions whose address is taken.
const TABLE_ELEMENTS: usize = 1 << 20;

/// An engine for a worker: one program at a time, in memory that is wiped and used again.
pub(super) fn for_running() -> wasmtime::Result<Engine> {
    // Without this file, what keeps its pages would be copied whole, written or not.
    let resident_bytes = if File::open("/proc/self/pagemap").is_ok() { RESIDENT_BYTES } else { 0 };
    let mut pool = PoolingAllocationConfig::new();
    pool.total_core_instances(COMPONENT_INSTANCES)
        .total_component_instances(1)
        .max_component_instance_size(INSTANCE_BYTES)
        .max_core_instance_size(INSTANCE_BYTES)
        .max_core_instances_per_component(COMPONENT_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_memories_per_module(MEMORIES)
        .max_memory_size(ADDRESSABLE_BYTES)
        .max_tables_per_component(TABLES)
        .max_tables_per_module(TABLES)
        .table_elements(TABLE_ELEMENTS)
        .total_memories(MEMORIES)
        .total_tables(TABLES)
        .total_gc_heaps(1)
        .total_stacks(1)
        .linear_memory_keep_resident(resident_bytes)
        .table_keep_resident(resident_bytes)
        .pagemap_scan(Enabled::Auto);
    let mut config = settings();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config)
}

/// Most memories of a program.
const MEMORIES: u32 = 8;

/// Most tables of a program.
const TABLES: u32 = 64;

/// An engine that prepares what [`for_running`] runs, and starts what a template is made of.
pub(super) fn for_preparing() -> wasmtime::Result<Engine> {
    Engine::new(&settings())
}

/// The same, on one thread.
pub(super) fn for_compiling_in_a_jail() -> wasmtime::Result<Engine> {
    Engine::new(settings().parallel_compilation(false))
}

/// What makes native code what it is.
fn settings() -> Config {
    let mut config = Config::new();
    config
        // C++ and longjmp in Python's libraries.
        .wasm_exceptions(true)
        .collector(Collector::DeferredReferenceCounting)
        .max_wasm_stack(STACK_BYTES)
        .async_stack_size(STACK_BYTES + HOST_STACK_BYTES)
        // However large and sparse: a page that a run doesn't write stays shared with all others.
        .memory_guaranteed_dense_image_size(u64::MAX)
        // A trap of a program is told by its kind alone. Maps from its code to its source would be half
        // of the file, and registering them half of the time to open it.
        .wasm_backtrace_max_frames(None)
        .generate_address_map(false)
        .native_unwind_info(false);
    config
}

/// What of the engine, of the processor and of the version a prepared file depends on.
pub(super) fn compatibility(engine: &Engine, digest: &mut Sha256) {
    struct Into<'a>(&'a mut Sha256);
    impl Hasher for Into<'_> {
        fn finish(&self) -> u64 {
            0 // never asked for: the digest is
        }
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
    }
    engine.precompile_compatibility_hash().hash(&mut Into(digest));
}

/// The first line of what Wasmtime says, with its causes.
pub(super) fn words(error: &wasmtime::Error) -> impl fmt::Display {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    causes.join(": ").lines().next().unwrap_or_default().to_owned()
}
