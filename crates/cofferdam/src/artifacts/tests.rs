//! Writers of results, fed as the engine feeds them; the diffs are applied by git itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use cofferdam_core::artifact::{Change, Rejected, Rejection};
use cofferdam_core::files::{Files, Workspace};
use cofferdam_core::outcome::RunId;
use cofferdam_engine::run::{Content, FileKept, Former, Gone, Keep};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Diff, Keeper, Out};

fn run() -> RunId {
    RunId::new(1, [7; 10])
}

fn file(
    keep: &mut Keeper,
    path: &str,
    executable: bool,
    now: &[u8],
    before: Option<(bool, &[u8])>,
) -> io::Result<()> {
    let mut source = now;
    let mut content = Content::new(&mut source, now.len() as u64);
    let change = if before.is_some() { Change::Modified } else { Change::Added };
    let mut held = before;
    let before = held.as_mut().map(|(executable, content)| Former { executable: *executable, content });
    keep.file(FileKept { path, change, executable, now: &mut content, before })
}

fn keeper(out: &Path) -> Keeper {
    Keeper::prepare(Some(out), None, &Files::default()).unwrap().unwrap()
}

fn refused(out: &Path, workspace: Option<&Path>) -> String {
    let fault = Out::prepare(out, workspace).map(drop).unwrap_err();
    assert!(fault.fix.is_some(), "{fault:?}");
    fault.message
}

fn changes(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("changes.json")).unwrap()).unwrap()
}

/// Writes a small result.
fn result(out: &Path) {
    let mut keep = keeper(out);
    keep.begin(&run()).unwrap();
    keep.folder("d", Change::Added).unwrap();
    file(&mut keep, "d/x", true, b"hello", None).unwrap();
    file(&mut keep, "deep/er/y", false, b"new", Some((false, b"old"))).unwrap();
    keep.link("l", "d/x", Change::Added).unwrap();
    keep.gone("z", Gone::File(None)).unwrap();
    keep.rejected(&Rejected { path: ".envrc".into(), why: Rejection::HostExec }).unwrap();
    keep.finish().unwrap();
}

#[test]
fn a_result_has_its_files_and_says_all_of_them() {
    let top = tempfile::tempdir().unwrap();
    let out = top.path().join("out");
    result(&out);
    assert_eq!(fs::read(out.join("files/d/x")).unwrap(), b"hello");
    assert_eq!(fs::read_link(out.join("files/l")).unwrap(), Path::new("d/x"));
    let mode = |path: &str| fs::metadata(out.join(path)).unwrap().permissions().mode() & 0o7700;
    assert_eq!((mode("files/d/x"), mode("files/deep/er/y"), mode("files/d")), (0o700, 0o600, 0o700));
    let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let new = "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437";
    assert_eq!(
        changes(&out),
        json!({
            "version": 1,
            "run": run().as_str(),
            "added": [{"path": "d/x", "bytes": 5, "sha256": sha256, "executable": true}],
            "modified": [{"path": "deep/er/y", "bytes": 3, "sha256": new, "executable": false}],
            "deleted": ["z"],
            "links": [{"path": "l", "target": "d/x"}],
            "folders": ["d"],
            "rejected": [{"path": ".envrc", "why": "host_exec"}],
        })
    );
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2, "nothing else is left in it");
}

#[test]
fn an_earlier_result_is_replaced_and_anything_else_is_not() {
    let top = tempfile::tempdir().unwrap();
    let out = top.path().join("out");
    result(&out);
    drop(keeper(&out)); // a run that was refused
    assert!(out.join("files/d/x").exists(), "the earlier result stays until there is a new one");
    let mut keep = keeper(&out);
    keep.begin(&run()).unwrap();
    assert!(!out.join("changes.json").exists(), "what is not whole doesn't look so");
    drop(keep); // a run that failed
    let mut keep = keeper(&out);
    keep.begin(&run()).unwrap();
    keep.finish().unwrap();
    drop(keep);
    assert_eq!(fs::read_dir(out.join("files")).unwrap().count(), 0);
    fs::write(out.join("mine"), "x").unwrap();
    assert!(refused(&out, None).contains("something else"));
    fs::remove_file(out.join("mine")).unwrap();
    fs::write(out.join("changes.json"), "{}").unwrap();
    assert!(refused(&out, None).contains("something else"));
}

#[test]
fn a_place_that_is_none_is_refused_and_what_is_in_it_stays() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    fs::create_dir_all(at("ws/sub")).unwrap();
    fs::create_dir(at("ws/empty")).unwrap();
    let workspace = at("ws").canonicalize().unwrap();
    let refused = |path: &Path| refused(path, Some(&workspace));
    assert!(refused(&at("ws")).contains("workspace"));
    assert!(refused(top.path()).contains("workspace"));
    assert!(refused(&at("ws/empty")).contains("earlier result"));
    assert!(refused(Path::new("relative")).contains("relative"));
    assert!(refused(&at("missing/out")).contains("missing"));
    assert!(refused(&at("ws/..")).contains("name"));
    symlink(at("ws/sub"), at("link")).unwrap();
    assert!(refused(&at("link")).contains("link"));
    fs::write(at("file"), "x").unwrap();
    assert!(refused(&at("file")).contains("file"));
    assert_eq!(fs::read(at("file")).unwrap(), b"x");
    let new = at("ws/out");
    drop(Out::prepare(&new, Some(&workspace)).map_err(|fault| fault.message).unwrap());
    assert!(!new.exists(), "a folder that was made for a run that never began goes again");
    let _first = Out::prepare(&new, Some(&workspace)).map_err(|fault| fault.message).unwrap();
    assert!(refused(&new).contains("another run"));
}

#[test]
fn a_file_that_cannot_be_read_to_its_end_leaves_nothing() {
    let top = tempfile::tempdir().unwrap();
    let (out, diff) = (top.path().join("out"), top.path().join("x.diff"));
    let mut keep = Keeper::prepare(Some(&out), Some(&diff), &Files::default()).unwrap().unwrap();
    keep.begin(&run()).unwrap();
    let mut source = &b"short"[..];
    let mut content = Content::new(&mut source, 100);
    let now = &mut content;
    let kept = FileKept { path: "x", change: Change::Added, executable: false, now, before: None };
    assert!(keep.file(kept).is_err());
    assert!(!out.join("files/x").exists());
    file(&mut keep, "y", false, b"1", None).unwrap();
    keep.finish().unwrap();
    assert!(out.join("files/y").exists());
    let text = fs::read_to_string(diff).unwrap();
    assert!(text.contains("b/y") && !text.contains("b/x"), "{text}");
}

#[test]
fn no_link_in_a_result_is_followed() {
    let (top, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let out = top.path().join("out");
    let mut keep = keeper(&out);
    keep.begin(&run()).unwrap();
    symlink(outside.path(), out.join("files/d")).unwrap();
    assert!(file(&mut keep, "d/x", false, b"1", None).is_err());
    assert!(keep.link("d/l", "x", Change::Added).is_err());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert!(file(&mut keep, "e/x", false, b"1", None).is_ok());
    // An earlier result whose `files` is a link: the link goes, not what it leads to.
    fs::write(outside.path().join("precious"), "1").unwrap();
    fs::remove_dir_all(out.join("files")).unwrap();
    symlink(outside.path(), out.join("files")).unwrap();
    keep.begin(&run()).unwrap();
    assert!(outside.path().join("precious").exists());
    assert!(out.join("files").symlink_metadata().unwrap().is_dir());
}

#[test]
fn what_is_empty_in_a_file_takes_no_room() {
    let top = tempfile::tempdir().unwrap();
    let out = top.path().join("out");
    let mut keep = keeper(&out);
    keep.begin(&run()).unwrap();
    let mut held = vec![0; 8 << 20];
    held[5 << 20] = 1;
    file(&mut keep, "holes", false, &held, None).unwrap();
    let found = fs::metadata(out.join("files/holes")).unwrap();
    assert_eq!(found.len(), held.len() as u64);
    assert!(found.blocks() * 512 < 1 << 20, "{} blocks", found.blocks());
    assert!(fs::read(out.join("files/holes")).unwrap() == held);
}

#[test]
fn a_full_disk_names_the_file_and_leaves_no_result() {
    let inner = std::env::var_os("COFFERDAM_TEST_FULL");
    if let Some(folder) = inner {
        return fill(Path::new(&folder));
    }
    let top = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let name = "artifacts::tests::a_full_disk_names_the_file_and_leaves_no_result";
    let script = "mount -t tmpfs -o size=256k tmpfs \"$0\" || exit 77; exec \"$@\"";
    let child = Command::new("unshare")
        .args(["-m", "sh", "-c", script])
        .arg(top.path())
        .arg(program)
        .args(["--exact", name, "--nocapture"])
        .env("COFFERDAM_TEST_FULL", top.path())
        .output();
    match child {
        Ok(child) if child.status.success() => {
            assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"), "{child:?}");
        }
        Ok(child) if child.status.code() == Some(101) => panic!("{child:?}"),
        other => cofferdam_testkit::skip!("no mount namespace with a small file system: {other:?}"),
    }
}

/// In a file system of 256 KiB.
fn fill(folder: &Path) {
    let out = folder.join("out");
    let mut keep = keeper(&out);
    keep.begin(&run()).unwrap();
    file(&mut keep, "small", false, &[1; 1000], None).unwrap();
    let error = file(&mut keep, "large", false, &[1; 1 << 20], None).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert!(error.to_string().contains("files/large"), "{error}");
    assert!(!out.join("files/large").exists());
    drop(keep);
    assert!(!out.join("changes.json").exists());
    let mut keep = keeper(&out);
    keep.begin(&run()).unwrap();
    keep.finish().unwrap();
    assert!(out.join("changes.json").exists(), "the next run may use the place again");
}

// Diffs.

/// A file of a tree: what it holds and whether it can be executed, or a link.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    File(Vec<u8>, bool),
    Link(String),
}

type Tree = BTreeMap<String, Node>;

fn text(held: &str) -> Node {
    Node::File(held.into(), false)
}

fn tree(nodes: &[(&str, Node)]) -> Tree {
    nodes.iter().map(|(path, node)| ((*path).to_owned(), node.clone())).collect()
}

fn write_tree(folder: &Path, tree: &Tree) {
    for (path, node) in tree {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match node {
            Node::File(held, executable) => {
                fs::write(&path, held).unwrap();
                let mode = if *executable { 0o755 } else { 0o644 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
            Node::Link(target) => symlink(target, &path).unwrap(),
        }
    }
}

fn read_tree(folder: &Path, below: &str, tree: &mut Tree) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{below}{}", entry.file_name().to_str().unwrap());
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            read_tree(&entry.path(), &format!("{path}/"), tree);
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).unwrap();
            tree.insert(path, Node::Link(target.to_str().unwrap().into()));
        } else {
            let executable = entry.metadata().unwrap().mode() & 0o100 != 0;
            tree.insert(path, Node::File(fs::read(entry.path()).unwrap(), executable));
        }
    }
}

fn shown(workspace: &Path) -> Files {
    Files { workspace: Some(Workspace { host: workspace.to_owned(), copy: false }), ..Files::default() }
}

/// Tells a diff how one tree became another, as a backend over that workspace tells it.
fn diff_of(before: &Tree, after: &Tree, top: &TempDir) -> String {
    let workspace = top.path().join("workspace");
    fs::create_dir_all(&workspace).unwrap();
    write_tree(&workspace, before);
    let path = top.path().join("x.diff");
    let diff = Diff::prepare(&path, &shown(&workspace)).map_err(|fault| fault.message).unwrap();
    let mut keep = Keeper::new(None, Some(diff)).unwrap();
    keep.begin(&run()).unwrap();
    for (path, node) in before {
        match (node, after.get(path)) {
            (Node::File(held, executable), None) => {
                let content = &mut held.as_slice();
                keep.gone(path, Gone::File(Some(Former { executable: *executable, content }))).unwrap();
            }
            (Node::Link(target), None) => keep.gone(path, Gone::Link(target.as_bytes())).unwrap(),
            _ => {}
        }
    }
    for (path, node) in after {
        let former = before.get(path);
        match (node, former) {
            (now, Some(before)) if now == before => {}
            (Node::File(now, executable), Some(Node::File(before, was))) => {
                file(&mut keep, path, *executable, now, Some((*was, before))).unwrap();
            }
            (Node::File(now, executable), former) => {
                let change = if former.is_some() { Change::Modified } else { Change::Added };
                let (executable, mut source) = (*executable, now.as_slice());
                let now = &mut Content::new(&mut source, now.len() as u64);
                keep.file(FileKept { path, change, executable, now, before: None }).unwrap();
            }
            (Node::Link(target), former) => {
                let change = if former.is_some() { Change::Modified } else { Change::Added };
                keep.link(path, target, change).unwrap();
            }
        }
    }
    keep.finish().unwrap();
    String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned()
}

/// Applies a diff with git to a copy of the tree before; gives the tree after.
fn applied(before: &Tree, top: &TempDir) -> Tree {
    let copy = top.path().join("copy");
    fs::create_dir(&copy).unwrap();
    write_tree(&copy, before);
    let git = Command::new("git")
        .args(["apply", "--whitespace=nowarn", "../x.diff"])
        .current_dir(&copy)
        .env("GIT_CEILING_DIRECTORIES", top.path())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("HOME", top.path())
        .output()
        .unwrap();
    assert!(git.status.success(), "{git:?}\n{}", fs::read_to_string(top.path().join("x.diff")).unwrap());
    let mut found = Tree::new();
    read_tree(&copy, "", &mut found);
    found
}

fn git_is_there() -> bool {
    Command::new("git").arg("--version").output().is_ok_and(|git| git.status.success())
}

#[test]
fn git_makes_of_the_tree_before_the_tree_after() {
    if !git_is_there() {
        cofferdam_testkit::skip!("there is no git");
    }
    let long =
        |change: &str| (0..200).map(|at| if at == 100 { change.into() } else { format!("{at}\n") }).collect();
    let long = |change: &str| -> String { long(change) };
    let before = tree(&[
        ("edited", text(&long("old\n"))),
        ("start", text("a\nb\n")),
        ("end", text("a\nb")),
        ("gone", text("x\ny\n")),
        ("d/only", text("1")),
        ("empty gone", text("")),
        ("mode", text("same\n")),
        ("mode and text", Node::File(b"one\n".into(), true)),
        ("link", Node::Link("edited".into())),
        ("link gone", Node::Link("edited".into())),
        ("to link", text("file\n")),
        ("to file", Node::Link("edited".into())),
        ("latin", Node::File(b"caf\xe9\n".into(), false)),
        ("emptied", text("a\n")),
        ("filled", text("")),
        ("crlf", text("a\r\nb\r\n")),
        ("untouched", text("u\n")),
    ]);
    let after = tree(&[
        ("edited", text(&long("new\nand more\n"))),
        ("start", text("0\na\nb\n")),
        ("end", text("a\nb\n")),
        ("mode", Node::File(b"same\n".into(), true)),
        ("mode and text", text("two\n")),
        ("link", Node::Link("start".into())),
        ("to link", Node::Link("edited".into())),
        ("to file", text("file\n")),
        ("latin", Node::File(b"caf\xe9s\n".into(), false)),
        ("emptied", text("")),
        ("filled", text("a\n\n")),
        ("crlf", text("a\r\nc\r\n")),
        ("untouched", text("u\n")),
        ("new/deep/file", text("no newline")),
        ("new empty", text("")),
        ("new link", Node::Link("new/deep".into())),
        ("with \"quotes\"\\", text("q\n")),
        ("日本.txt", text("--- a/x\n+++ b/x\n@@ -1 +1 @@\ndiff --git a/y b/y\n")),
        ("tool", Node::File(b"#!/bin/sh\n".into(), true)),
    ]);
    let top = tempfile::tempdir().unwrap();
    diff_of(&before, &after, &top);
    assert_eq!(applied(&before, &top), after);
}

#[test]
fn what_is_no_text_is_told_by_hash_and_the_rest_applies() {
    if !git_is_there() {
        cofferdam_testkit::skip!("there is no git");
    }
    let large = |byte: u8| Node::File([vec![byte; 5 << 20], b"\n".to_vec()].concat(), false);
    let before = tree(&[
        ("a empty", text("x")),
        ("binary", Node::File(b"\0old".into(), false)),
        ("large", large(b'a')),
        ("m", text("m\n")),
    ]);
    let after = tree(&[
        ("a empty", Node::File(b"x".into(), true)),
        ("binary", Node::File(b"\0new".into(), false)),
        ("large", large(b'b')),
        ("m", text("changed\n")),
        ("new binary", Node::File(b"\0".into(), false)),
    ]);
    let top = tempfile::tempdir().unwrap();
    let diff = diff_of(&before, &after, &top);
    assert!(diff.contains("Binary files a/binary and b/binary differ\n"), "{diff}");
    assert!(diff.contains("Binary files /dev/null and b/new binary differ\n"), "{diff}");
    assert!(diff.contains("6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"), "{diff}");
    assert!(diff.len() < 4096, "a large file is told by hash");
    let found = applied(&before, &top);
    assert_eq!(found["binary"], before["binary"]);
    assert_eq!((&found["m"], &found["a empty"]), (&after["m"], &after["a empty"]));
    assert!(!found.contains_key("new binary"));
}

#[test]
fn a_text_whose_comparison_takes_for_ever_is_shown_whole_in_bounded_time() {
    if !git_is_there() {
        cofferdam_testkit::skip!("there is no git");
    }
    let noise = |seed: u64| {
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Some(format!("{}\n", *state >> 56))
        };
        std::iter::successors(Some(seed), |_| None)
            .flat_map(move |mut state| std::iter::from_fn(move || next(&mut state)).take(150_000))
            .collect::<String>()
    };
    let (before, after) = (tree(&[("x", text(&noise(1)))]), tree(&[("x", text(&noise(2)))]));
    let began = std::time::Instant::now();
    let top = tempfile::tempdir().unwrap();
    diff_of(&before, &after, &top);
    assert!(began.elapsed().as_secs() < 60);
    assert_eq!(applied(&before, &top), after);
}

#[test]
fn a_diff_takes_its_name_when_it_is_whole_and_never_through_a_link() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    let prepare = |path: &Path| Diff::prepare(path, &Files::default()).map_err(|fault| fault.message);
    fs::write(at("x.diff"), "earlier").unwrap();
    drop(prepare(&at("x.diff")).unwrap());
    assert_eq!(fs::read(at("x.diff")).unwrap(), b"earlier");
    assert_eq!(fs::read_dir(top.path()).unwrap().count(), 1, "a run that failed leaves nothing");
    let mut keep = Keeper::prepare(None, Some(&at("x.diff")), &Files::default()).unwrap().unwrap();
    keep.begin(&run()).unwrap();
    keep.finish().unwrap();
    assert_eq!(fs::read(at("x.diff")).unwrap(), b"");
    symlink(at("x.diff"), at("link")).unwrap();
    for path in [at("link"), at("missing/x"), top.path().to_owned(), "relative".into()] {
        assert!(prepare(&path).is_err(), "{}", path.display());
    }
}

#[test]
fn what_the_program_was_not_shown_is_not_in_its_diff() {
    let top = tempfile::tempdir().unwrap();
    let (workspace, path) = (top.path().join("ws"), top.path().join("x.diff"));
    fs::create_dir(&workspace).unwrap();
    for name in [".env.local", "shown"] {
        fs::write(workspace.join(name), format!("canary of {name}\n")).unwrap();
    }
    let diff = Diff::prepare(&path, &shown(&workspace)).map_err(|fault| fault.message).unwrap();
    let mut keep = Keeper::new(None, Some(diff)).unwrap();
    keep.begin(&run()).unwrap();
    for name in [".env.local", "shown"] {
        keep.link(name, "x", Change::Modified).unwrap();
        keep.gone(name, Gone::File(None)).unwrap();
    }
    keep.finish().unwrap();
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("canary of shown"), "the same without being hidden is there");
    assert!(!text.contains("canary of .env"), "{text}");
}
