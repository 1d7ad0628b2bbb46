//! Standard input: empty, large, unwanted, unending.

use std::time::Duration;

use cofferdam_core::outcome::End;
use cofferdam_core::policy::LimitsLayer;
use sha2::{Digest, Sha256};

use super::trial::Trial;
use super::wired::Input;
use super::{Checked, Subject, Verdict};

/// Says how many bytes came, and everything that they are.
const COUNT: &str = "import sys; data = sys.stdin.buffer.read(); print(len(data))";

pub(super) fn an_input_that_is_not_there_is_empty(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    for input in [Input::None, Input::Bytes(vec![])] {
        let mut what = trial.python(COUNT);
        let timeout = Some(Duration::from_secs(3));
        what.layer = trial.limited(&LimitsLayer { timeout, ..LimitsLayer::default() });
        what.input = input;
        trial.run(what)?.says("0\n")?;
    }
    Ok(Verdict::Held)
}

pub(super) fn a_megabyte_comes_back_as_it_went_in(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let all: Vec<u8> = (0..1u32 << 20).map(|n| (n ^ n >> 8 ^ n >> 16) as u8).collect();
    let mut what =
        trial.python("import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)");
    what.input = Input::Bytes(all.clone());
    let ran = trial.run(what)?;
    ran.ends(End::Exited(0))?;
    must!(ran.stdout().len() == all.len(), "{} bytes came back", ran.stdout().len());
    must!(Sha256::digest(ran.stdout()) == Sha256::digest(&all), "other bytes came back");
    Ok(Verdict::Held)
}

pub(super) fn an_input_that_nobody_reads_holds_nobody_up(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    for code in
        ["print('over')", "import os, sys, time; os.read(0, 1); os.close(0); time.sleep(0.05); print('over')"]
    {
        let mut what = trial.python(code);
        what.input = Input::Bytes(vec![b'x'; 5 << 20]);
        trial.run(what)?.says("over\n")?;
    }
    Ok(Verdict::Held)
}

pub(super) fn an_input_that_never_ends_ends_with_its_program(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let mut what = trial.python("import sys; print(sys.stdin.readline().strip())");
    what.input = Input::Unending(b"one line\n".to_vec());
    trial.run(what)?.says("one line\n")?;
    Ok(Verdict::Held)
}
