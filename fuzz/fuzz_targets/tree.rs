//! Whatever a program leaves in its working directory: what comes out of it stays within its bounds,
//! leads nowhere, and holds nothing that lies beside the directory.
//!
//! The input is a list of steps that make a tree: files, links of both kinds, FIFOs, sockets, folders,
//! attributes, odd names. It is collected
//! as a run's is: read by the container's collector, judged by the engine's, and written by the product's
//! own `--out` and `--diff`.

#![no_main]

#[allow(dead_code, unused_imports, reason = "it is the product's own, of which this uses a part")]
#[path = "../../crates/cofferdam/src/artifacts/mod.rs"]
mod artifacts;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use artifacts::Keeper;
use cofferdam_core::Capability;
use cofferdam_core::artifact::{Change, Collect, DEPTH, ENTRIES, Rejected, TOTAL_BYTES};
use cofferdam_core::backend::{BackendError, Boxed, Exec, Left, Running, Session};
use cofferdam_core::files::Files;
use cofferdam_core::outcome::RunId;
use cofferdam_core::outlet::Outlet;
use cofferdam_engine::run::{FileKept, Gone, Keep, collect_for_fuzzing};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{CWD, FileType, Mode, OFlags, XattrFlags, listxattr, lsetxattr};

/// What lies beside the tree and comes out of nothing.
const CANARY: &[u8] = b"canary-51e9b7";

const NAMES: &[&[u8]] = &[
    b"a",
    b"b",
    b"A",
    b".git",
    b"config",
    b"HEAD",
    b"Makefile",
    b".vscode",
    b"-rf",
    b"x\ny",
    b"\xff",
    b"\x1b[2J",
    "\u{202e}gpj".as_bytes(),
    b"...",
    b".. ",
    b"con",
    b"a\\b",
    b"objects",
    b"refs",
    b"package.json",
];

const TARGETS: &[&[u8]] = &[
    b"a",
    b"..",
    b"../canary",
    b"../../canary",
    b"/etc/passwd",
    b"a/../../canary",
    b".",
    b"b/a",
    b"../a",
    b"\xff",
];

fuzz_target!(|bytes: &[u8]| {
    let top = tempfile::tempdir().unwrap();
    let place = |name: &str| top.path().join(name);
    for folder in ["work", "before", "results"] {
        fs::create_dir(place(folder)).unwrap();
    }
    fs::write(place("canary"), CANARY).unwrap();
    fs::write(place("before/a"), "before\n").unwrap();
    symlink("a", place("before/b")).unwrap();
    make(&place("work"), &place("canary"), bytes);
    let source = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let mut session = Tree { folder: place("work"), before: source.then(|| place("before")) };
    let (out, diff) = (place("results/out"), place("results/diff"));
    let kept = Keeper::prepare(Some(&out), Some(&diff), &Files::default()).ok().flatten().unwrap();
    let mut keep = Watched { kept, entries: 0 };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let run = RunId::new(1, [1; 10]);
    let (artifacts, _, fault) = runtime.block_on(collect_for_fuzzing(&mut session, &run, &mut keep));
    assert!(fault.is_none(), "{fault:?}");
    assert!(keep.entries <= ENTRIES && artifacts.len() <= ENTRIES);
    assert!(artifacts.iter().map(|artifact| artifact.bytes).sum::<u64>() <= TOTAL_BYTES);
    let listed: BTreeSet<_> =
        artifacts.iter().map(|artifact| out.join("files").join(&artifact.path)).collect();
    assert_eq!(listed.len(), artifacts.len(), "two of one name");
    look_through(&out.join("files"), &out.join("files").canonicalize().unwrap(), 0, &listed);
    holds_no_canary(&diff);
    holds_no_canary(&out.join("changes.json"));
});

/// Makes the tree. What the file system refuses is left out.
fn make(work: &Path, canary: &Path, bytes: &[u8]) {
    let (mut at, mut depth) = (work.to_owned(), 0);
    for step in bytes.chunks(4) {
        let [what, name, detail, more] =
            [0, 1, 2, 3].map(|index| step.get(index).copied().unwrap_or_default());
        let odd = [name, more];
        let name = match NAMES.get(usize::from(name)) {
            Some(name) => *name,
            None if odd.contains(&b'/') || odd.contains(&0) => b"c",
            None => &odd,
        };
        let path = at.join(OsStr::from_bytes(name));
        let done = match what % 11 {
            0 => create(&path).and_then(|mut file| file.write_all(&vec![detail; usize::from(more) * 16])),
            1 => {
                let target = TARGETS.get(usize::from(detail)).copied().map(OsStr::from_bytes);
                symlink(target.unwrap_or(canary.as_os_str()), &path)
            }
            2 => rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).map_err(io::Error::from),
            3 | 4 => fs::create_dir(&path).inspect(|()| {
                at = path.clone();
                depth += 1;
            }),
            5 => {
                if depth > 0 {
                    at.pop();
                    depth -= 1;
                }
                Ok(())
            }
            // Larger than anything that comes out; holes take no room.
            6 => create(&path).and_then(|file| file.set_len(TOTAL_BYTES + 1 + u64::from(detail))),
            7 if path.is_symlink() => Ok(()),
            7 => fs::set_permissions(&path, PermissionsExt::from_mode(u32::from(detail) << 4)),
            8 => {
                let other = NAMES[usize::from(detail) % NAMES.len()];
                fs::hard_link(work.join(OsStr::from_bytes(other)), &path)
            }
            9 => UnixListener::bind(&path).map(drop),
            _ => lsetxattr(&path, "user.cofferdam", &[detail], XattrFlags::empty()).map_err(io::Error::from),
        };
        let _ = done;
    }
}

/// Makes or empties a file. No link is followed: what it leads to is the host's own.
fn create(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    Ok(rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?.into())
}

/// A session of which there is only what a program left.
struct Tree {
    folder: PathBuf,
    before: Option<PathBuf>,
}

impl Session for Tree {
    fn enforced(&self) -> &BTreeSet<Capability> {
        unreachable!("nothing is asked of it but what it has")
    }

    fn is_alive(&self) -> bool {
        false
    }

    fn put(&mut self, _: cofferdam_core::request::File) -> Boxed<'_, Result<(), BackendError>> {
        Box::pin(async { Err(BackendError::Spent) })
    }

    fn exec(&mut self, _: Exec) -> Boxed<'_, Result<Box<dyn Running>, BackendError>> {
        Box::pin(async { Err(BackendError::Spent) })
    }

    fn halt(&mut self) -> Boxed<'_, Result<Left, BackendError>> {
        Box::pin(async { Ok(Left::default()) })
    }

    fn get<'a>(&'a mut self, receiver: &'a mut dyn Collect) -> Boxed<'a, Result<(), BackendError>> {
        let open = |path: &PathBuf| File::open(path).unwrap().into();
        let (folder, before) = (open(&self.folder), self.before.as_ref().map(open));
        Box::pin(cofferdam_backends::container::collect(folder, before, receiver))
    }

    fn settle(&mut self) -> Boxed<'_, Result<Option<Left>, BackendError>> {
        Box::pin(async { Ok(None) })
    }

    fn renew(
        self: Box<Self>,
        _: Arc<dyn Outlet>,
    ) -> Boxed<'static, Result<Option<Box<dyn Session>>, BackendError>> {
        Box::pin(async { Ok(None) })
    }

    fn close(self: Box<Self>) -> Boxed<'static, Result<(), BackendError>> {
        Box::pin(async { Ok(()) })
    }
}

/// The product's own keeper, with a look at what it gets.
struct Watched {
    kept: Keeper,
    entries: usize,
}

impl Watched {
    fn entry(&mut self, path: &str) {
        self.entries += 1;
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        assert!(!path.is_empty() && Path::new(path).components().all(plain), "{path:?}");
        assert!(path.split('/').count() <= DEPTH, "{path:?}");
        assert!(!path.chars().any(char::is_control), "{path:?}");
    }
}

impl Keep for Watched {
    fn begin(&mut self, run: &RunId) -> io::Result<()> {
        self.kept.begin(run)
    }

    fn folder(&mut self, path: &str, change: Change) -> io::Result<()> {
        self.entry(path);
        self.kept.folder(path, change)
    }

    fn file(&mut self, file: FileKept<'_, '_>) -> io::Result<()> {
        self.entry(file.path);
        self.kept.file(file)
    }

    fn link(&mut self, path: &str, target: &str, change: Change) -> io::Result<()> {
        self.entry(path);
        let climbs = target.split('/').take_while(|part| *part == "..").count();
        assert!(!target.starts_with('/') && climbs < path.split('/').count(), "{path:?} -> {target:?}");
        assert!(!target.split('/').skip(climbs).any(|part| part == ".."), "{path:?} -> {target:?}");
        self.kept.link(path, target, change)
    }

    fn gone(&mut self, path: &str, what: Gone<'_>) -> io::Result<()> {
        self.entry(path);
        self.kept.gone(path, what)
    }

    fn rejected(&mut self, rejected: &Rejected) -> io::Result<()> {
        assert!(!rejected.path.chars().any(char::is_control), "{:?}", rejected.path);
        self.kept.rejected(rejected)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.kept.finish()
    }
}

/// Holds that what is below a folder of results is what is listed, plain files that share nothing and
/// links that stay below its top, and nothing of it the canary's.
fn look_through(folder: &Path, top: &Path, depth: usize, listed: &BTreeSet<PathBuf>) {
    assert!(depth <= DEPTH);
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let found = fs::symlink_metadata(&path).unwrap();
        let kind = found.file_type();
        if kind.is_dir() {
            look_through(&path, top, depth + 1, listed);
        } else if kind.is_file() {
            assert!(found.nlink() == 1 && found.mode() & 0o7000 == 0, "{path:?} is {found:?}");
            let mut names = [0; 4096];
            let length = listxattr(&path, &mut names[..]).unwrap_or_default();
            let ours = names[..length].split(|byte| *byte == 0).any(|name| name.starts_with(b"user."));
            assert!(!ours, "{path:?} has attributes");
            assert!(listed.contains(&path), "{path:?} is in no list");
            holds_no_canary(&path);
        } else {
            assert!(kind.is_symlink(), "{path:?} is {kind:?}");
            stays_below(&path, top);
        }
    }
}

/// Holds that a link leads nowhere but below a folder, as the kernel follows it; of one that leads to
/// nothing, as far as there is something.
fn stays_below(link: &Path, top: &Path) {
    let mut place = link.parent().unwrap().join(fs::read_link(link).unwrap());
    loop {
        match place.canonicalize() {
            Ok(real) => return assert!(real.starts_with(top), "{link:?} leads to {real:?}"),
            Err(_) => assert!(place.pop(), "{link:?}"),
        }
    }
}

fn holds_no_canary(path: &Path) {
    let bytes = fs::read(path).unwrap();
    assert!(!bytes.windows(CANARY.len()).any(|part| part == CANARY), "{path:?}");
}
