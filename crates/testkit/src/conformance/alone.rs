//! What a program must not meet: the host besides what a policy shows of it, and other sandboxes.

use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use cofferdam_core::backend::{Ending, Session};
use cofferdam_core::outcome::End;
use cofferdam_core::request::Variable;

use super::trial::{GONE_WITHIN, Trial, exec, listen, marker, new_run, python, said};
use super::{Broken, Checked, Subject, Verdict};
use crate::host::eventually;

/// A process of the host's, which goes with this.
struct Bystander(Child);

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have been killed, which is what is looked for
        let _ = self.0.wait();
    }
}

/// Reads and writes a folder, and looks for a process and kills it, whose names it finds in variables.
const TRESPASS: &str = "import os, signal
folder, marker, pid = (os.environ['HOST_' + name] for name in ('FOLDER', 'MARKER', 'PID'))
try: print('read', open(folder + '/secret').read())
except OSError: pass
try: print('listed', os.listdir(folder))
except OSError: pass
try: open(folder + '/written', 'w').close()
except OSError: pass
for other in os.listdir('/proc') if os.path.isdir('/proc') else ():
    try:
        line = open(f'/proc/{other}/cmdline').read() if other.isdigit() else ''
        if marker in line: print('saw', other)
    except OSError: pass
try: os.kill(int(pid), signal.SIGKILL)
except (AttributeError, OSError): pass";

pub(super) fn what_no_policy_shows_is_not_seen(subject: &Subject) -> Checked {
    let failed = |error: std::io::Error| Broken(format!("the host couldn't be set up: {error}"));
    let trial = Trial::of(subject)?;
    // Outside all of it is there and can be done, or this shows nothing.
    for inside in [false, true] {
        let (folder, marker) = (tempfile::tempdir().map_err(failed)?, marker());
        fs::write(folder.path().join("secret"), "of the host").map_err(failed)?;
        let mut bystander = Bystander(Command::new("sleep").arg(&marker).spawn().map_err(failed)?);
        let pid = bystander.0.id().to_string();
        let named = [
            ("HOST_FOLDER", folder.path().to_str().unwrap_or_default()),
            ("HOST_MARKER", marker.as_str()),
            ("HOST_PID", pid.as_str()),
        ];
        let said = if inside {
            let mut what = trial.python(TRESPASS);
            what.layer.environment.set = named.map(|(name, it)| Variable::new(name, it).unwrap()).into();
            let ran = trial.run(what)?;
            ran.ends(End::Exited(0))?;
            ran.said()
        } else {
            let output = Command::new("/usr/bin/python3")
                .args(["-c", TRESPASS])
                .envs(named)
                .output()
                .map_err(failed)?;
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let wrote = folder.path().join("written").exists();
        let within = if inside { Duration::from_millis(200) } else { GONE_WITHIN };
        let killed = eventually(within, || bystander.0.try_wait().is_ok_and(|ended| ended.is_some()));
        let did = |what: &str| said.lines().any(|line| line.starts_with(what));
        if !inside {
            let all = ["read", "listed", "saw"].iter().all(|what| did(what)) && wrote && killed;
            must!(all, "the attempts fail outside: {said:?}, wrote {wrote}, killed {killed}");
            continue;
        }
        must!(!did("read") && !did("listed"), "it read what no policy shows: {said:?}");
        must!(!wrote, "it wrote beside what it was given");
        must!(!did("saw"), "it saw a process of the host: {said:?}");
        must!(!killed, "it killed a process of the host");
        must!(said.is_empty(), "it said {said:?}");
    }
    Ok(Verdict::Held)
}

/// Leaves a trace in each place where a program may leave one.
const LEAVE: &str = "import ctypes, os, socket
mark = os.environ['MARK']
for place in ('.', '/tmp', os.environ.get('HOME', '/tmp'), '/dev/shm', '/var/tmp'):
    try: open(os.path.join(place, mark), 'w').write(mark)
    except OSError: pass
try: ctypes.CDLL(None).shmget(0x5eed, 4096, 0o1666)
except (AttributeError, OSError): pass
try: open('/proc/self/comm', 'w').write(mark[:15])
except OSError: pass
print(sum(mark in os.listdir(place) for place in ('.', '/tmp')))";

/// Looks for it.
const LOOK: &str = "import os
mark = os.environ['MARK']
for place in ('.', '/tmp', os.environ.get('HOME', '/tmp'), '/dev/shm', '/var/tmp'):
    try: print(*[f'{place}/{name}' for name in os.listdir(place) if mark in name])
    except OSError: pass
for kind in ('shm', 'msg', 'sem'):
    try: print(*open('/proc/sysvipc/' + kind).read().splitlines()[1:])
    except OSError: pass
for other in os.listdir('/proc') if os.path.isdir('/proc') else ():
    try:
        comm = open(f'/proc/{other}/comm').read().strip() if other.isdigit() else ''
        if comm == mark[:15]: print('a process', other)
    except OSError: pass";

pub(super) fn a_second_sandbox_finds_nothing_of_the_first(subject: &Subject) -> Checked {
    let trial = Trial::of(subject)?;
    let mark = format!("m{}", marker());
    let run = async |session: &mut dyn Session, code: &str| {
        let mut what = exec(python(code));
        what.environment = vec![Variable::new("MARK", mark.as_str()).unwrap()];
        let running = session.exec(what).await.map_err(said("exec"))?;
        let heard = listen(running.as_ref()).await?;
        must!(heard.ending == Ending::Exited(0), "it ended {:?}", heard.ending);
        Ok(String::from_utf8_lossy(&heard.stdout).trim().to_owned())
    };
    let (first, beside, after) = (new_run(), new_run(), new_run());
    trial.until_hung(async {
        let mut one = trial.open(&first, trial.layer()).await?;
        let left = run(one.as_mut(), LEAVE).await?;
        must!(left == "2", "a program can leave nothing, and this shows nothing: {left:?}");
        let mut other = trial.open(&beside, trial.layer()).await?;
        let found = run(other.as_mut(), LOOK).await?;
        must!(found.is_empty(), "beside the first a second finds {found:?}");
        for mut session in [one, other] {
            session.halt().await.map_err(said("halt"))?;
            session.close().await.map_err(said("close"))?;
        }
        let mut other = trial.open(&after, trial.layer()).await?;
        let found = run(other.as_mut(), LOOK).await?;
        must!(found.is_empty(), "after the first a second finds {found:?}");
        other.halt().await.map_err(said("halt"))?;
        other.close().await.map_err(said("close"))
    })?;
    Ok(Verdict::Held)
}
