//! What a program is handed: files, arguments, variables, a working directory; and what comes out.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::time::Duration;

use cofferdam_core::artifact::{Collect, Entry, Found};
use cofferdam_core::backend::{BackendError, Ending, Exec, Fit};
use cofferdam_core::files::Files;
use cofferdam_core::outcome::End;
use cofferdam_core::policy::LimitsLayer;
use cofferdam_core::request::{File, Lang, Origin, Program, Script, Variable};

use super::trial::{self, Trial, exec, file, listen, new_run, python, said};
use super::{Broken, Checked, Needs, Subject, Verdict};

/// Lists what is handed over: how it differs and its path, with what it holds.
#[derive(Default)]
pub(super) struct List(pub(super) BTreeMap<String, Vec<u8>>);

impl Collect for List {
    fn take(&mut self, found: Found<'_>) -> std::io::Result<()> {
        let mut bytes = vec![];
        if let Entry::File(file) = found.entry
            && let Some(now) = file.now
        {
            now.take(1 << 20).read_to_end(&mut bytes)?;
        }
        let key = format!("{} {}", found.change.name(), String::from_utf8_lossy(found.path));
        self.0.insert(key, bytes);
        Ok(())
    }
}

pub(super) fn files_are_there_before_the_program_starts(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let large: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
    let code = "import os
for name in sorted(os.listdir('.')):
    print(name, os.path.getsize(name), os.access(name, os.X_OK))
print(open('large', 'rb').read() == bytes(n & 255 for n in range(300000)))
print(os.getcwd(), os.access('.', os.W_OK))";
    let mut what = trial.python(code);
    what.files = vec![
        file("empty", b""),
        file("large", &large),
        File { executable: true, ..file("-rf \u{e9}", b"#!/bin/sh\n") },
        file("twice", b"the first"),
        file("twice", b"second"),
    ];
    let ran = trial.run(what)?;
    ran.ends(End::Exited(0))?;
    let said = ran.said();
    // Where there are no permissions, everything may be executed, as far as anybody can tell.
    let other = if said.contains("empty 0 True\n") { "True" } else { "False" };
    let [empty, large, twice] = ["empty 0", "large 300000", "twice 6"].map(|name| format!("{name} {other}"));
    for line in ["-rf \u{e9} 10 True", &empty, &large, &twice, "True"] {
        must!(said.lines().any(|said| said == line), "{line:?} isn't in {said:?}");
    }
    must!(said.lines().count() == 6 && said.ends_with(" True\n"), "nothing else is there: {said:?}");
    Ok(Verdict::Held)
}

pub(super) fn arguments_arrive_as_they_are(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let hostile: [&[u8]; 6] = [b"", b"--rm", b"a\nb", b"$(id)", b"\xff\xfe", b"' \" \\"];
    let source = b"import os, sys; print([os.fsencode(a) for a in sys.argv[1:]])".to_vec();
    let args = hostile.iter().map(|bytes| std::ffi::CString::new(*bytes).unwrap()).collect();
    let mut what = trial.python("");
    what.program = Program::Script(Script { lang: Lang::Python, origin: Origin::Inline, source, args });
    trial.run(what)?.says("[b'', b'--rm', b'a\\nb', b'$(id)', b'\\xff\\xfe', b'\\' \" \\\\']\n")?;
    Ok(Verdict::Held)
}

pub(super) fn code_of_any_origin_and_length_runs(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let name = file("a b.py", b"").name;
    let long = format!("# {}\nprint('ok')", "x".repeat(300_000));
    for (origin, source) in [
        (Origin::File(name), "print('ok')"),
        (Origin::Stdin, "import sys; print('ok' + sys.stdin.read())"),
        (Origin::Inline, long.as_str()),
    ] {
        let source = source.as_bytes().to_vec();
        let mut what = trial.python("");
        what.program = Program::Script(Script { lang: Lang::Python, origin, source, args: vec![] });
        trial.run(what)?.says("ok\n")?;
    }
    Ok(Verdict::Held)
}

pub(super) fn what_it_says_that_it_runs_runs_and_nothing_else(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let print =
        [(Lang::Python, "print('ran')"), (Lang::Shell, "echo ran"), (Lang::JavaScript, "console.log('ran')")];
    for (lang, code) in print {
        let origin = Origin::Inline;
        let script = Script { lang, origin, source: code.as_bytes().to_vec(), args: vec![] };
        let mut what = trial.python("");
        what.program = Program::Script(script.clone());
        let fit = trial.backend.fit(&trial::request(what.program.clone()), &Files::default());
        let ran = trial.run(what)?;
        match fit {
            Fit::Yes { .. } => ran.says("ran\n")?,
            Fit::No { why, .. } | Fit::NotYet { why, .. } | Fit::Unlikely { why, .. } => {
                ran.ends(End::Refused)?;
                let message = ran.outcome.error.as_ref().map(|fault| fault.message.as_str());
                must!(
                    message.is_some_and(|message| message.contains(&why)),
                    "it isn't told why: {}",
                    ran.story()
                );
                let needs = if lang == Lang::Python { Needs::Python } else { Needs::Sh };
                let promised = lang != Lang::JavaScript && subject.runs.contains(&needs);
                must!(!promised, "it is known to run {needs:?} and says that it can't: {why}");
            }
        }
    }
    Ok(Verdict::Held)
}

pub(super) fn variables_of_the_request_win_over_the_policys(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let variable = |name: &str, value: &str| Variable::new(name, value).unwrap();
    let mut what =
        trial.python("import os; print(os.environ['BOTH'], os.environ['HOME'], os.environ['ONE'])");
    what.layer.environment.set = vec![variable("BOTH", "policy"), variable("HOME", "/elsewhere")];
    what.environment = vec![variable("ONE", "a=b c"), variable("BOTH", "early"), variable("BOTH", "request")];
    trial.run(what)?.says("request /elsewhere a=b c\n")?;
    Ok(Verdict::Held)
}

pub(super) fn a_second_program_finds_what_the_first_left_but_not_its_variables(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let run = new_run();
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        let mut first = exec(python("open('left', 'w').write('here')"));
        first.environment = vec![Variable::new("ONLY_FIRST", "1").unwrap()];
        let running = session.exec(first).await.map_err(said("exec"))?;
        must!(listen(running.as_ref()).await?.ending == Ending::Exited(0), "the first failed");
        session.put(file("put", b"between")).await.map_err(said("put"))?;
        let code = "import os; print(open('left').read(), open('put').read(), os.environ.get('ONLY_FIRST'))";
        let running = session.exec(exec(python(code))).await.map_err(said("exec"))?;
        let heard = listen(running.as_ref()).await?;
        let stdout = String::from_utf8_lossy(&heard.stdout).into_owned();
        must!(stdout == "here between None\n", "the second says {stdout:?}");
        session.halt().await.map_err(said("halt"))?;
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn one_program_runs_at_a_time_and_its_end_is_kept_for_whoever_asks(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let run = new_run();
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        let hold = Exec { stdin: true, ..exec(python("import sys; sys.stdin.read(); sys.exit(7)")) };
        let first = session.exec(hold).await.map_err(said("exec"))?;
        let refused = session.exec(exec(python("print('beside')"))).await.err();
        must!(matches!(refused, Some(BackendError::Exec { .. })), "a program beside another: {refused:?}");
        first.close_stdin().await;
        while first.output().await.map_err(said("output"))?.is_some() {}
        // Its streams are closed a little before it has ended.
        let second = loop {
            match session.exec(exec(python("print('second')"))).await {
                Err(BackendError::Exec { .. }) => tokio::time::sleep(Duration::from_millis(1)).await,
                started => break started.map_err(said("exec"))?,
            }
        };
        let heard = listen(second.as_ref()).await?;
        must!(heard.stdout == b"second\n", "it says {:?}", String::from_utf8_lossy(&heard.stdout));
        must!(heard.ending == Ending::Exited(0), "the second ended {:?}", heard.ending);
        let ending = first.wait().await.map_err(said("wait"))?;
        must!(ending == Ending::Exited(7), "the first ended {ending:?}");
        session.halt().await.map_err(said("halt"))?;
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn a_file_that_does_not_fit_is_an_error_and_the_sandbox_goes_on(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let run = new_run();
    let limits = LimitsLayer { disk_bytes: Some(1 << 20), ..LimitsLayer::default() };
    trial.until_hung(async {
        let mut session = trial.open(&run, trial.limited(&limits)).await?;
        let refused = session.put(file("large", &vec![7; 3 << 20])).await;
        must!(matches!(refused, Err(BackendError::Put { .. })), "three times the disk: {refused:?}");
        session.put(file("large", b"small")).await.map_err(said("put"))?;
        let running =
            session.exec(exec(python("print(open('large').read())"))).await.map_err(said("exec"))?;
        let heard = listen(running.as_ref()).await?;
        must!(heard.stdout == b"small\n", "it says {:?}", String::from_utf8_lossy(&heard.stdout));
        session.halt().await.map_err(said("halt"))?;
        session.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}

pub(super) fn what_changed_comes_out_and_nothing_else_and_not_before_the_halt(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let run = new_run();
    let listed = trial.until_hung(async {
        let mut session = trial.open(&run, trial.layer()).await?;
        session.put(file("kept", b"as it was")).await.map_err(said("put"))?;
        session.put(file("changed", b"as it was")).await.map_err(said("put"))?;
        let code = "import os
open('changed', 'a').write(' and more')
os.mkdir('new'); open('new/file', 'wb').write(bytes(range(256)))
open('gone', 'w').close(); os.remove('gone')
open('kept').read()";
        let running = session.exec(exec(python(code))).await.map_err(said("exec"))?;
        must!(listen(running.as_ref()).await?.ending == Ending::Exited(0), "the program failed");
        let mut early = List::default();
        must!(session.get(&mut early).await.is_err(), "something comes out while it runs");
        must!(early.0.is_empty(), "something came out while it runs: {:?}", early.0.keys());
        session.halt().await.map_err(said("halt"))?;
        let mut list = List::default();
        session.get(&mut list).await.map_err(said("get"))?;
        session.close().await.map_err(said("close"))?;
        Ok::<_, Broken>(list.0)
    })?;
    let names: BTreeSet<_> = listed.keys().map(String::as_str).collect();
    // A file that was put is new to the working directory once the program has changed it.
    let expected = BTreeSet::from(["added changed", "added new", "added new/file"]);
    must!(names == expected, "{names:?} came out");
    must!(listed["added changed"] == b"as it was and more", "its content is another");
    must!(listed["added new/file"] == (0..=255).collect::<Vec<u8>>(), "its content is another");
    Ok(Verdict::Held)
}
