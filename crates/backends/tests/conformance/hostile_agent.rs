//! Process 1 of a sandbox is hostile: what it says over the real control socket, from the inside of a
//! real sandbox, is nonsense. The run ends truly and in time all the same, and nothing is left of it.
//!
//! The agent's program is kept in a folder of ours and taken from there if it looks as it should. The
//! hostile one is put in its place, as long as the real one, so that everything else is as ever. What it
//! does is a script of few bytes: see [`Act`].

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cofferdam_backends::container::Container;
use cofferdam_core::outcome::{End, FaultCode, Outcome, Ran};
use cofferdam_core::policy::BackendName;
use cofferdam_core::request::{File, FileName};
use cofferdam_guest::wire::{Frame, FromGuest, VERSION};
use cofferdam_testkit::conformance::{Needs, Subject, outcome_of};
use tempfile::TempDir;

/// What the hostile agent does, one after the other; after the last it does nothing, for ever.
enum Act {
    /// Closes the control socket.
    Close,
    /// Ends.
    End,
    /// Says these bytes over and over.
    Flood(Vec<u8>),
    /// Hears something, if there is something to be heard.
    Hear,
    /// Says these bytes.
    Say(Vec<u8>),
}

use Act::{Close, End as Ends, Flood, Hear, Say};

/// The agent. Its script is written over the 4,096 bytes in which nothing else is.
const SOURCE: &str = r#"
#include <unistd.h>
static volatile unsigned char script[4096] = "@@SCRIPT@@ no other bytes of this program are these";
static void say(unsigned long at, unsigned long count) {
    unsigned char bytes[4096];
    for (unsigned long n = 0; n < count; n++) bytes[n] = script[at + n];
    if (write(3, bytes, count) < 0) pause();
}
int main(void) {
    static unsigned char heard[65536];
    unsigned long at = 0;
    for (;;) {
        unsigned char act = script[at++];
        unsigned long count = script[at] | script[at + 1] << 8;
        at += 2;
        if (act == 'C') close(3);
        else if (act == 'E') _exit(0);
        else if (act == 'H') { if (read(3, heard, sizeof heard) < 0) pause(); }
        else if (act == 'S') { say(at, count); at += count; }
        else if (act == 'F') for (;;) say(at, count);
        else for (;;) pause();
    }
}
"#;

const PLACEHOLDER: &[u8] = b"@@SCRIPT@@";

/// The hostile program, and where and how long the real one is kept; none where there is no compiler.
fn built() -> Option<&'static (Vec<u8>, PathBuf)> {
    static BUILT: OnceLock<Option<(Vec<u8>, PathBuf)>> = OnceLock::new();
    BUILT.get_or_init(build).as_ref()
}

fn build() -> Option<(Vec<u8>, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("agent.c"), folder.path().join("agent"));
    std::fs::write(&source, SOURCE).unwrap();
    let built = Command::new("cc").args(["-static", "-O1", "-s", "-o"]).args([&program, &source]).output();
    if !built.is_ok_and(|built| built.status.success()) {
        return None;
    }
    // Where the real one is kept shows when it has been.
    let honest = Subject::new(BackendName::Container, &[Needs::Sh], {
        let kept = folder.path().join("kept");
        move |_| Ok(Box::new(Container::for_runs(kept.clone())))
    });
    outcome_of(&honest, "true", vec![], DEADLINE).unwrap();
    let entry = std::fs::read_dir(folder.path().join("kept/agent")).unwrap().next().unwrap().unwrap();
    let mut bytes = std::fs::read(program).unwrap();
    let length = entry.metadata().unwrap().len() as usize;
    assert!(bytes.len() <= length, "the hostile agent is longer than the real one");
    bytes.resize(length, 0);
    Some((bytes, Path::new("agent").join(entry.file_name())))
}

/// The hostile program with a script.
fn with_script(program: &[u8], acts: &[Act]) -> Vec<u8> {
    let mut script = vec![];
    for act in acts {
        let (letter, bytes) = match act {
            Close => (b'C', &[][..]),
            Ends => (b'E', &[][..]),
            Flood(bytes) => (b'F', bytes.as_slice()),
            Hear => (b'H', &[][..]),
            Say(bytes) => (b'S', bytes.as_slice()),
        };
        script.push(letter);
        script.extend((bytes.len() as u16).to_le_bytes());
        script.extend(bytes);
    }
    script.resize(PLACEHOLDER.len().max(script.len() + 3), 0);
    let at = program.windows(PLACEHOLDER.len()).position(|window| window == PLACEHOLDER).unwrap();
    let mut program = program.to_vec();
    program[at..at + script.len()].copy_from_slice(&script);
    program
}

/// Puts the hostile agent where the real one would be kept.
fn plant(state: &Path, name: &Path, program: &[u8]) {
    let path = state.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::set_permissions(path.parent().unwrap(), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(&path, program).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o555)).unwrap();
}

/// How long a program may take whose end nobody tells.
const DEADLINE: Duration = Duration::from_millis(700);

/// The Outcome of a run in a sandbox with this agent; none if it can't be built here.
fn outcome(files: &[(&str, usize)], acts: &[Act]) -> Option<Outcome> {
    let (program, name) = built()?;
    let folder: TempDir = tempfile::tempdir().unwrap();
    let kept = folder.path().to_owned();
    plant(&kept, name, &with_script(program, acts));
    let subject = Subject::new(BackendName::Container, &[Needs::Sh], move |_| {
        Ok(Box::new(Container::for_runs(kept.clone())))
    });
    let file = |(name, bytes): &(&str, usize)| {
        let name = FileName::new(*name).unwrap();
        File { name, bytes: vec![0; *bytes], executable: false }
    };
    let began = Instant::now();
    let outcome = outcome_of(&subject, "echo ran; sleep 300", files.iter().map(file).collect(), DEADLINE);
    let outcome = outcome.unwrap_or_else(|broken| panic!("{broken}"));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "it took {took:?}: {outcome:?}");
    assert!(folder.path().join(name).exists(), "the hostile agent was not taken for the real one");
    Some(outcome)
}

macro_rules! skip_without_compiler {
    () => {
        if built().is_none() {
            cofferdam_testkit::skip!("there is no C compiler that links statically");
        }
    };
}

fn ready() -> Act {
    Say(FromGuest::Ready(VERSION).encode())
}

/// It greets, hears what to start, and says that it did.
fn started() -> [Act; 3] {
    [ready(), Hear, Say(FromGuest::Started.encode())]
}

/// The sandbox was lost while its program was started or while it ran: nobody knows whether it ran.
fn is_lost(outcome: &Outcome, code: FaultCode) {
    let found = outcome.error.as_ref().map(|fault| fault.code);
    assert_eq!(
        (outcome.end, outcome.ran, found),
        (End::BackendLost, Ran::Unknown, Some(code)),
        "{outcome:?}"
    );
}

/// Not hostile, but unlucky: a set-up that another thread began has a copy of the descriptor by which the
/// program was written.
#[test]
fn an_agent_that_is_open_for_writing_for_a_moment_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().to_owned();
    let subject = Subject::new(BackendName::Container, &[Needs::Sh], move |_| {
        Ok(Box::new(Container::for_runs(kept.clone())))
    });
    let run = || outcome_of(&subject, "exit 3", vec![], Duration::from_secs(20)).unwrap();
    assert_eq!(run().end, End::Exited(3));
    let entry = std::fs::read_dir(folder.path().join("agent")).unwrap().next().unwrap().unwrap();
    let mode = |mode| std::fs::set_permissions(entry.path(), PermissionsExt::from_mode(mode)).unwrap();
    mode(0o755);
    let writing = std::fs::OpenOptions::new().append(true).open(entry.path()).unwrap();
    mode(0o555);
    let closing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(60));
        drop(writing);
    });
    assert_eq!(run().end, End::Exited(3));
    closing.join().unwrap();
}

#[test]
fn nonsense_before_the_program_starts_loses_the_sandbox() {
    skip_without_compiler!();
    let frame = |message: FromGuest| message.encode();
    for nonsense in [
        vec![0xff; 64],
        u32::MAX.to_le_bytes().to_vec(),
        vec![0; 16],
        b"HTTP/1.1 200 OK\r\n\r\n".to_vec(),
        frame(FromGuest::Ready(VERSION + 1)),
        frame(FromGuest::Started),
        frame(FromGuest::Exited(0)),
        [frame(FromGuest::Ready(VERSION)), frame(FromGuest::Ready(VERSION))].concat(),
        [frame(FromGuest::Ready(VERSION)), frame(FromGuest::Exited(0))].concat(),
        [frame(FromGuest::Ready(VERSION)), frame(FromGuest::Put(Ok(())))].concat(),
        [frame(FromGuest::Ready(VERSION)), vec![5, 0, 0, 0, 130, 0, 0, 0, 0]].concat(),
    ] {
        is_lost(&outcome(&[], &[Say(nonsense)]).unwrap(), FaultCode::Internal);
    }
}

#[test]
fn an_agent_that_goes_away_before_the_program_starts_loses_the_sandbox() {
    skip_without_compiler!();
    let half = FromGuest::Started.encode()[..6].to_vec();
    for acts in [
        vec![Close],
        vec![Ends],
        vec![ready(), Close],
        vec![ready(), Hear, Ends],
        vec![ready(), Hear, Say(half.clone()), Close],
        vec![Say(half[..2].to_vec()), Ends],
    ] {
        is_lost(&outcome(&[], &acts).unwrap(), FaultCode::BackendLost);
    }
}

#[test]
fn nonsense_while_the_program_runs_loses_the_sandbox() {
    skip_without_compiler!();
    for nonsense in [
        vec![0xff; 64],
        b"\x05\0\0\0\x81\xff\xff\xff\xff".to_vec(), // an exit status of -1
        b"\x05\0\0\0\x85\0\0\0\0".to_vec(),         // a death by signal 0
        FromGuest::Started.encode(),
        FromGuest::Put(Ok(())).encode(),
        FromGuest::NotStarted(2).encode(),
        FromGuest::Ready(VERSION).encode(),
    ] {
        let acts = started().into_iter().chain([Say(nonsense)]);
        is_lost(&outcome(&[], &acts.collect::<Vec<_>>()).unwrap(), FaultCode::Internal);
    }
}

#[test]
fn an_agent_that_goes_away_while_the_program_runs_loses_the_sandbox() {
    skip_without_compiler!();
    let half = || Say(FromGuest::Exited(0).encode()[..7].to_vec());
    for end in [vec![Close], vec![Ends], vec![half(), Close], vec![half(), Ends]] {
        let acts: Vec<_> = started().into_iter().chain(end).collect();
        is_lost(&outcome(&[], &acts).unwrap(), FaultCode::BackendLost);
    }
}

#[test]
fn a_silent_agent_holds_no_program_beyond_its_deadline() {
    skip_without_compiler!();
    let half = Say(FromGuest::Exited(0).encode()[..7].to_vec());
    for rest in [vec![], vec![half]] {
        let acts: Vec<_> = started().into_iter().chain(rest).collect();
        let outcome = outcome(&[], &acts).unwrap();
        assert_eq!((outcome.end, outcome.ran), (End::TimedOut, Ran::Yes), "{outcome:?}");
    }
}

#[test]
fn a_flood_ends_at_its_first_word_that_makes_no_sense() {
    skip_without_compiler!();
    let exited = FromGuest::Exited(3).encode();
    let acts = started().into_iter().chain([Flood(exited.repeat(100))]);
    let ended = outcome(&[], &acts.collect::<Vec<_>>()).unwrap();
    assert_eq!(ended.end, End::Exited(3), "a program ends once, however often that is said: {ended:?}");
    let acts = started().into_iter().chain([Flood(FromGuest::Started.encode().repeat(100))]);
    is_lost(&outcome(&[], &acts.collect::<Vec<_>>()).unwrap(), FaultCode::Internal);
    is_lost(&outcome(&[], &[Flood(vec![0xff; 1000])]).unwrap(), FaultCode::Internal);
}

#[test]
fn an_agent_that_claims_to_have_put_what_it_was_not_asked_for_is_not_believed() {
    skip_without_compiler!();
    let refused = Say(FromGuest::Put(Err(28)).encode());
    let full = outcome(&[("file", 10)], &[ready(), Hear, refused]).unwrap();
    assert_eq!((full.end, full.ran), (End::Refused, Ran::No), "a disk can be full: {full:?}");
    for answer in [FromGuest::Started, FromGuest::Exited(0), FromGuest::NotStarted(2)] {
        let lost = outcome(&[("file", 10)], &[ready(), Hear, Say(answer.encode())]).unwrap();
        assert_eq!((lost.end, lost.ran), (End::SandboxError, Ran::No), "nothing was started: {lost:?}");
    }
}
