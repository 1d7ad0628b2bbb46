//! `--diff FILE`: one unified diff that `git apply` takes.
//!
//! Text is shown line by line, links by what they say, and modes as git has them. What is no text,
//! or longer than [`SHOWN_BYTES`], is told by its two SHA-256 between the patches, where git ignores
//! it: such a diff applies, without those files. The FILE takes its name when it is whole; until
//! then it has none, so that nothing is left of a run that is killed. Where the file system has no files
//! without a name, it is a hidden one beside FILE, which goes with a run that fails.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cofferdam_core::artifact::{Change, Rejected, TOTAL_BYTES};
use cofferdam_core::files::{Files, Pattern};
use cofferdam_core::outcome::Fault;
use cofferdam_engine::run::{Former, Gone};
use cofferdam_sys::beneath::Folder;
use sha2::{Digest, Sha256};
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices_deadline, group_diff_ops};

use super::place;
use super::{at, refusal};

/// The most bytes of a file that are shown line by line.
const SHOWN_BYTES: usize = 4 << 20;

/// The most lines of a file that are compared. Longer ones are shown as removed and added whole.
const COMPARED_LINES: usize = 200_000;

/// How long all comparisons of a run may take together. A program can make texts whose comparison
/// takes for ever; then the remaining ones are shown as removed and added whole, as above.
const COMPARING: Duration = Duration::from_secs(3);

/// Lines around a change that stay as they are.
const CONTEXT: usize = 3;

/// A file for the differences.
pub(crate) struct Diff {
    path: PathBuf,
    /// The folder that it is made in.
    parent: Folder,
    /// The name through which it takes its own in one step.
    unfinished: String,
    /// Whether it has that name from the start.
    named: bool,
    writer: BufWriter<File>,
    /// The workspace as it was, for what an entry doesn't say of its former self.
    workspace: Option<Folder>,
    /// What of it the program was not shown, and nobody is shown here.
    hidden: Vec<Pattern>,
    time_left: Duration,
    finished: bool,
    /// How many changes are told by hash alone, and the first of them.
    by_hash: (usize, String),
}

impl Diff {
    /// Opens a file beside the one that is named by its absolute path. A regular file of that name
    /// will be replaced; anything else of that name is refused.
    ///
    /// # Errors
    ///
    /// Why it can't be used and what to do about it.
    pub(crate) fn prepare(file: &Path, files: &Files) -> Result<Diff, Fault> {
        let place = place::find("--diff", file)?;
        let shown = place.path.display();
        if fs::symlink_metadata(&place.path).is_ok_and(|found| !found.is_file()) {
            return Err(refusal(format!("--diff: {shown} is no regular file"), "name another file"));
        }
        let number = u64::from_le_bytes(cofferdam_sys::fd::random_bytes().unwrap_or_default());
        let unfinished = format!(".cofferdam-{number:016x}.diff");
        let open = || {
            let parent = Folder::open(&place.parent)?;
            match parent.create_unnamed() {
                Ok(file) => Ok((parent, file, false)),
                Err(_) => parent.create_file(&unfinished, false).map(|file| (parent, file, true)),
            }
        };
        let (parent, file, named) = open().map_err(|error| {
            let message = format!("--diff: {}: {error}", place.parent.display());
            refusal(message, "name a file in a folder that you can write")
        })?;
        let writer = BufWriter::new(file);
        let workspace = files.workspace.as_ref().and_then(|folder| Folder::open(&folder.host).ok());
        let (hidden, path) = (files.hidden(), place.path);
        Ok(Diff {
            path,
            parent,
            unfinished,
            named,
            writer,
            workspace,
            hidden,
            time_left: COMPARING,
            finished: false,
            by_hash: Default::default(),
        })
    }

    /// What the diff can't do, for a person.
    pub(super) fn note(&self) -> Option<String> {
        let (count, first) = &self.by_hash;
        (*count > 0).then(|| {
            format!(
                "the diff has {count} of the changes by hash alone, the first {first:?}: they are no text or \
                 too long, and come out with --out"
            )
        })
    }

    pub(super) fn file(
        &mut self,
        path: &str,
        change: Change,
        now: &Side,
        before: Option<Former<'_>>,
    ) -> io::Result<()> {
        let before = match before {
            Some(former) => Some(Side::read(former)?),
            None => self.former(path, change),
        };
        self.entry(path, change, before.as_ref(), Some(now))
    }

    pub(super) fn link(&mut self, path: &str, target: &str, change: Change) -> io::Result<()> {
        let before = self.former(path, change);
        self.entry(path, change, before.as_ref(), Some(&Side::link(target.as_bytes().to_vec())))
    }

    /// Takes notice of a file or link in whose place there is a folder. Git knows no folders.
    pub(super) fn became_a_folder(&mut self, path: &str) -> io::Result<()> {
        match self.former(path, Change::Modified) {
            Some(before) => self.entry(path, Change::Deleted, Some(&before), None),
            None => Ok(()),
        }
    }

    pub(super) fn gone(&mut self, path: &str, what: Gone<'_>) -> io::Result<()> {
        let before = match what {
            Gone::Folder => return Ok(()),
            Gone::Link(target) => Some(Side::link(target.to_vec())),
            Gone::File(Some(former)) => Some(Side::read(former)?),
            Gone::File(None) => self.former(path, Change::Deleted),
        };
        self.entry(path, Change::Deleted, before.as_ref(), None)
    }

    /// A line that git ignores.
    pub(super) fn rejected(&mut self, rejected: &Rejected) -> io::Result<()> {
        let line = format!("# not let out ({}): {}\n", rejected.why, rejected.path);
        self.append(line.as_bytes())
    }

    /// Gives the file its name.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        self.writer.flush().map_err(at(&self.path))?;
        self.take_name().map_err(at(&self.path))?;
        self.finished = true;
        Ok(())
    }

    /// In two steps, since a new name can't take the place of an old one.
    fn take_name(&mut self) -> io::Result<()> {
        if !self.named {
            self.parent.name(self.writer.get_ref(), &self.unfinished)?;
            self.named = true;
        }
        fs::rename(self.path.with_file_name(&self.unfinished), &self.path)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.writer.write_all(bytes).map_err(at(&self.path))
    }

    /// What a path of the workspace was, where the entry doesn't say it: a link, or what a link took
    /// the place of. The host's workspace is as the program was shown it, but for what is hidden: of
    /// that nothing is read.
    fn former(&self, path: &str, change: Change) -> Option<Side> {
        let hidden = self.hidden.iter().any(|pattern| pattern.covers(path.as_bytes()));
        let workspace = self.workspace.as_ref().filter(|_| change != Change::Added && !hidden)?;
        if let Ok(target) = workspace.read_link(path) {
            return Some(Side::link(target));
        }
        let mut file = workspace.open_file(path).ok()?;
        let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata().ok()?);
        Side::read(Former { executable: mode & 0o100 != 0, content: &mut file }).ok()
    }

    /// Writes what became of one path.
    fn entry(
        &mut self,
        path: &str,
        change: Change,
        before: Option<&Side>,
        now: Option<&Side>,
    ) -> io::Result<()> {
        if before.is_none() && change != Change::Added {
            let line = format!("# not in this diff, since what it was isn't known: {}\n", quoted("", path));
            return self.append(line.as_bytes());
        }
        match (before, now) {
            // Git has a link that becomes a file as two patches.
            (Some(one), Some(two)) if (one.mode == LINK) != (two.mode == LINK) => {
                let removed = self.patch(path, before, None);
                let added = self.patch(path, None, now);
                self.append(&removed)?;
                self.append(&added)
            }
            _ => {
                let patch = self.patch(path, before, now);
                self.append(&patch)
            }
        }
    }

    /// One patch, or nothing where nothing differs.
    fn patch(&mut self, path: &str, before: Option<&Side>, now: Option<&Side>) -> Vec<u8> {
        // What was too large to read has no hash, and is the same as nothing.
        let hash = |side: Option<&Side>| side.and_then(Side::sha256);
        let same = hash(before).is_some() && hash(before) == hash(now);
        let modes = modes(before, now);
        let mut patch = vec![];
        let texts = (before.map_or(Some(&[][..]), Side::text), now.map_or(Some(&[][..]), Side::text));
        if same && modes.is_empty() {
            return patch;
        }
        let (Some(old), Some(new)) = texts else {
            if same {
                return [header(path).as_bytes(), modes.as_bytes()].concat();
            }
            if self.by_hash.0 == 0 {
                path.clone_into(&mut self.by_hash.1);
            }
            self.by_hash.0 += 1;
            return told_by_hash(path, before, now).into_bytes();
        };
        patch.extend_from_slice(header(path).as_bytes());
        patch.extend_from_slice(modes.as_bytes());
        if old != new {
            patch.extend_from_slice(name_line("---", "a/", path, before.is_some()).as_bytes());
            patch.extend_from_slice(name_line("+++", "b/", path, now.is_some()).as_bytes());
            self.hunks(old, new, &mut patch);
        }
        patch
    }

    fn hunks(&mut self, old: &[u8], new: &[u8], patch: &mut Vec<u8>) {
        let longest = count(old).max(count(new));
        if old.is_empty() || new.is_empty() || longest > COMPARED_LINES || self.time_left.is_zero() {
            return replaced(old, new, patch);
        }
        let (old, new): (Vec<_>, Vec<_>) = (lines(old).collect(), lines(new).collect());
        let began = Instant::now();
        let deadline = Some(began + self.time_left);
        let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, deadline);
        self.time_left = self.time_left.saturating_sub(began.elapsed());
        for group in group_diff_ops(ops, CONTEXT) {
            hunk(&group, &old, &new, patch);
        }
    }
}

impl Drop for Diff {
    fn drop(&mut self) {
        if self.named && !self.finished {
            let _ = self.parent.remove_file(&self.unfinished); // nobody is left to tell
        }
    }
}

/// The mode that git has for a link.
const LINK: &str = "120000";

/// What a path held before or after, as far as a diff shows it.
pub(super) struct Side {
    mode: &'static str,
    held: Vec<u8>,
    /// Whether there is more than is held.
    more: bool,
    bytes: u64,
    hash: Sha256,
}

impl Side {
    /// A file, whose content is written into it.
    pub(super) fn file(executable: bool) -> Side {
        let mode = if executable { "100755" } else { "100644" };
        Side { mode, held: vec![], more: false, bytes: 0, hash: Sha256::new() }
    }

    fn link(target: Vec<u8>) -> Side {
        let hash = Sha256::new_with_prefix(&target);
        Side { mode: LINK, bytes: target.len() as u64, held: target, more: false, hash }
    }

    /// A file as it was. Of one that is larger than all that may come out together only so much is
    /// read, and its hash isn't told.
    fn read(Former { executable, content }: Former<'_>) -> io::Result<Side> {
        let mut side = Side::file(executable);
        io::copy(&mut content.take(TOTAL_BYTES + 1), &mut side)?;
        Ok(side)
    }

    /// The content, if it is text that is shown: git's own test is a NUL byte.
    fn text(&self) -> Option<&[u8]> {
        (!self.more && !self.held.contains(&0)).then_some(&self.held)
    }

    /// The SHA-256; none of a file that was too large to read.
    fn sha256(&self) -> Option<String> {
        let hex = || self.hash.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        (self.bytes <= TOTAL_BYTES).then(hex)
    }
}

impl Write for Side {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        self.hash.update(bytes);
        if self.held.len() + bytes.len() <= SHOWN_BYTES && !self.more {
            self.held.extend_from_slice(bytes);
        } else {
            self.more = true;
            self.held = vec![];
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn header(path: &str) -> String {
    format!("diff --git {} {}\n", quoted("a/", path), quoted("b/", path))
}

/// The extended header lines; none where both are there with the same mode.
fn modes(before: Option<&Side>, now: Option<&Side>) -> String {
    match (before, now) {
        (None, Some(now)) => format!("new file mode {}\n", now.mode),
        (Some(before), None) => format!("deleted file mode {}\n", before.mode),
        (Some(before), Some(now)) if before.mode != now.mode => {
            format!("old mode {}\nnew mode {}\n", before.mode, now.mode)
        }
        _ => String::new(),
    }
}

fn name_line(sign: &str, side: &str, path: &str, is_there: bool) -> String {
    if !is_there {
        return format!("{sign} /dev/null\n");
    }
    // As git does: a tab ends a name that has a space, for tools that would cut it there.
    let tab = if path.contains(' ') { "\t" } else { "" };
    format!("{sign} {}{tab}\n", quoted(side, path))
}

/// What can't be shown as lines. It begins with a line of ours, since git takes one that begins with
/// `Binary files` for a patch that it can't apply where it follows a header at once.
fn told_by_hash(path: &str, before: Option<&Side>, now: Option<&Side>) -> String {
    let told = |side: Option<&Side>| match side {
        None => "none".to_owned(),
        Some(side) => format!("{} {} bytes", side.sha256().unwrap_or("unknown".into()), side.bytes),
    };
    let name = |side: &str, there: bool| if there { quoted(side, path) } else { "/dev/null".into() };
    format!(
        "# not in this diff, since it is no text or too long; sha256 before: {}, after: {}\n\
         Binary files {} and {} differ\n",
        told(before),
        told(now),
        name("a/", before.is_some()),
        name("b/", now.is_some()),
    )
}

/// A name as git writes it: in quotes where it has quotes, backslashes or bytes beyond ASCII.
fn quoted(side: &str, path: &str) -> String {
    let plain = |byte: u8| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\';
    if path.bytes().all(plain) {
        return format!("{side}{path}");
    }
    let mut text = format!("\"{side}");
    for byte in path.bytes() {
        match byte {
            b'"' | b'\\' => text.extend(['\\', char::from(byte)]),
            byte if plain(byte) => text.push(char::from(byte)),
            byte => text.push_str(&format!("\\{byte:03o}")),
        }
    }
    text.push('"');
    text
}

/// The lines of a text, each with its newline; the last one may have none.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|&byte| byte == b'\n')
}

fn count(text: &[u8]) -> usize {
    lines(text).count()
}

/// One hunk that removes all that was and adds all that is. It holds no list of lines, of which a
/// file can have millions.
fn replaced(old: &[u8], new: &[u8], patch: &mut Vec<u8>) {
    let header = format!("@@ -{} +{} @@\n", span(&(0..count(old))), span(&(0..count(new))));
    patch.extend_from_slice(header.as_bytes());
    lines(old).for_each(|line| signed(b'-', line, patch));
    lines(new).for_each(|line| signed(b'+', line, patch));
}

fn hunk(group: &[DiffOp], old: &[&[u8]], new: &[&[u8]], patch: &mut Vec<u8>) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let before = first.old_range().start..last.old_range().end;
    let after = first.new_range().start..last.new_range().end;
    patch.extend_from_slice(format!("@@ -{} +{} @@\n", span(&before), span(&after)).as_bytes());
    for op in group {
        let (tag, before, after) = op.as_tag_tuple();
        if tag == DiffTag::Equal {
            old[before].iter().for_each(|line| signed(b' ', line, patch));
            continue;
        }
        old[before].iter().for_each(|line| signed(b'-', line, patch));
        new[after].iter().for_each(|line| signed(b'+', line, patch));
    }
}

fn signed(sign: u8, line: &[u8], patch: &mut Vec<u8>) {
    patch.push(sign);
    patch.extend_from_slice(line);
    if !line.ends_with(b"\n") {
        patch.extend_from_slice(b"\n\\ No newline at end of file\n");
    }
}

/// Lines as a hunk's header counts them: from 1, without a count of one; of none, the line before.
fn span(lines: &std::ops::Range<usize>) -> String {
    match lines.len() {
        0 => format!("{},0", lines.start),
        1 => format!("{}", lines.start + 1),
        count => format!("{},{count}", lines.start + 1),
    }
}
