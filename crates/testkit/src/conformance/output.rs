//! Output: all of it, in order, whatever it is and however it ends.

use std::time::Duration;

use cofferdam_core::backend::Output;
use cofferdam_core::outcome::End;
use cofferdam_core::policy::LimitsLayer;
use sha2::{Digest, Sha256};

use super::trial::{Trial, marker};
use super::wired::Reader;
use super::{Checked, Subject, Verdict};

pub(super) fn nothing_is_nothing(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let ran = trial.run(trial.python("pass"))?;
    ran.ends(End::Exited(0))?;
    must!(ran.pieces.is_empty(), "it said {:?}", ran.pieces);
    must!(ran.outcome.times.first_output.is_none(), "and when: {:?}", ran.outcome.times);
    Ok(Verdict::Held)
}

pub(super) fn output_arrives_byte_for_byte(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let every: Vec<u8> = (0..=255).collect();
    let ran = trial
        .run(trial.python("import os; os.write(1, bytes(range(256))); os.write(2, bytes(range(256)))"))?;
    must!(ran.stdout() == every && ran.stderr() == every, "some of 256 bytes are others: {}", ran.story());
    for text in ["no newline at the end", "\n", "\r\n\r", "caf\u{e9} \u{1f980}"] {
        // Rust's way to quote these is Python's too.
        trial.run(trial.python(&format!("import os; os.write(1, {text:?}.encode())")))?.says(text)?;
    }
    Ok(Verdict::Held)
}

pub(super) fn a_character_that_is_cut_between_writes_arrives_whole(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os, time
for byte in 'h\\u00e9\\U0001f980llo'.encode():
    os.write(1, bytes([byte])); time.sleep(0.005)";
    trial.run(trial.python(code))?.says("h\u{e9}\u{1f980}llo")?;
    Ok(Verdict::Held)
}

pub(super) fn ten_megabytes_arrive_whole_however_slowly_they_are_read(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let all: Vec<u8> = (0..1_250_000u64).flat_map(u64::to_le_bytes).collect();
    let code = "import sys, struct
for start in range(0, 1250000, 50000):
    sys.stdout.buffer.write(struct.pack('<50000Q', *range(start, start + 50000)))";
    for reader in [Reader::All, Reader::Slow(Duration::from_millis(1))] {
        let mut what = trial.python(code);
        what.reader = reader;
        let ran = trial.run(what)?;
        ran.ends(End::Exited(0))?;
        let got = ran.stdout();
        must!(got.len() == all.len(), "{} bytes of {} came", got.len(), all.len());
        must!(Sha256::digest(&got) == Sha256::digest(&all), "the bytes are others");
    }
    Ok(Verdict::Held)
}

pub(super) fn each_stream_keeps_its_order_and_its_name(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os
for n in range(2000):
    os.write(1 + n % 2, b'%d\\n' % n)";
    let ran = trial.run(trial.python(code))?;
    ran.ends(End::Exited(0))?;
    let numbers = |from: u32| (from..2000).step_by(2).map(|n| format!("{n}\n")).collect::<String>();
    must!(ran.stdout() == numbers(0).as_bytes(), "standard output is out of order: {}", ran.story());
    must!(ran.stderr() == numbers(1).as_bytes(), "standard error is out of order: {}", ran.story());
    Ok(Verdict::Held)
}

pub(super) fn a_piece_comes_when_it_is_written_and_not_at_the_end(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let mut what = trial.python("import os, time\nos.write(1, b'first')\ntime.sleep(300)");
    what.layer =
        trial.limited(&LimitsLayer { timeout: Some(Duration::from_secs(1)), ..LimitsLayer::default() });
    let ran = trial.run(what)?;
    ran.ends(End::TimedOut)?;
    let times = &ran.outcome.times;
    let waited = times.first_output.unwrap_or(times.total);
    must!(ran.said() == "first", "what was said before the deadline is kept: {}", ran.story());
    must!(waited + Duration::from_millis(200) < times.total, "it came at the end: {times:?}");
    Ok(Verdict::Held)
}

pub(super) fn a_stream_that_is_closed_ends_nothing_else(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let code = "import os, sys, time
os.write(1, b'out'); os.close(1); time.sleep(0.02); os.write(2, b'err')
try: os.write(1, b'more')
except OSError: os.write(2, b' closed')
os.close(2); time.sleep(0.02); os._exit(5)";
    let ran = trial.run(trial.python(code))?;
    ran.ends(End::Exited(5))?;
    must!(ran.stdout() == b"out" && ran.stderr() == b"err closed", "{}", ran.story());
    Ok(Verdict::Held)
}

pub(super) fn the_last_words_before_an_end_arrive(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    // Several pieces, and about as much as a pipe holds: the last are read when the program has ended.
    let code = "import os, sys\nos.write(1, b'x' * 200000)\nos._exit(3)";
    for _ in 0..5 {
        let mut what = trial.python(code);
        what.reader = Reader::Slow(Duration::from_millis(5));
        let ran = trial.run(what)?;
        ran.ends(End::Exited(3))?;
        must!(ran.stdout().len() == 200_000, "{} of 200000 bytes came", ran.stdout().len());
    }
    Ok(Verdict::Held)
}

pub(super) fn a_reader_that_stops_reading_holds_no_deadline_up(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let mut what = trial.python("import os\nwhile True: os.write(1, b'x' * 65536)");
    what.layer =
        trial.limited(&LimitsLayer { timeout: Some(Duration::from_millis(300)), ..LimitsLayer::default() });
    what.reader = Reader::Slow(Duration::from_secs(300));
    let ran = trial.run(what)?;
    ran.ends(End::TimedOut)?;
    let run = ran.outcome.times.run;
    must!(run < Duration::from_secs(5), "it ran for {run:?} with a deadline of 300 ms");
    Ok(Verdict::Held)
}

pub(super) fn a_child_that_holds_the_output_open_holds_nobody_up(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let ran = trial.run(trial.sh(&format!("setsid sleep {} & echo over", marker())))?;
    ran.says("over\n")?;
    must!(ran.outcome.left_processes == 1, "{} were left", ran.outcome.left_processes);
    let took = ran.outcome.times.total;
    must!(took < Duration::from_secs(15), "it took {took:?}");
    must!(ran.pieces.iter().all(|piece| matches!(piece, Output::Stdout(_))), "{}", ran.story());
    Ok(Verdict::Held)
}
