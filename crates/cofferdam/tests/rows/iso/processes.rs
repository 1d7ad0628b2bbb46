//! What runs, and what it has open.

use std::path::PathBuf;

use cofferdam_testkit::product::start;
use cofferdam_testkit::rows::{Row, probe};
use serde_json::json;

use crate::{Ended, row};

row!("ISO-05", descriptors_of_the_caller_are_not_inherited);
row!("ISO-06", programs_that_run_the_sandbox_cannot_be_written);
row!("ISO-07", processes_of_the_host_can_neither_be_seen_nor_signalled);

/// Opens a folder and a file as descriptors 8 and 9, and becomes what follows.
const WITH_DESCRIPTORS: &str = r#"exec 8< "$1" 9< "$2"; shift 2; exec "$@""#;

const USE_DESCRIPTORS: &str = r"
import os
def each(use):
    used = []
    for n in range(3, 1024):
        try:
            use(n)
            used.append(n)
        except OSError: pass
    return used or False
attempt('is open', lambda: each(os.fstat))
attempt('can be listed', lambda: each(os.listdir))
attempt('can be read', lambda: each(lambda n: os.pread(n, 1, 0)))
attempt('leads to a working directory', lambda: each(lambda n: os.close(os.open(f'/proc/self/fd/{n}', os.O_PATH | os.O_DIRECTORY))))
attempt('leads above itself', lambda: each(lambda n: os.stat(f'/proc/self/fd/{n}/../{sibling}')))
def enter(n):
    os.chdir(f'/proc/self/fd/{n}')
    os.chdir('/')
attempt('can be entered', lambda: each(enter))
";

/// Runs what follows with the standard streams alone, whatever the tests themselves inherited.
const WITHOUT_DESCRIPTORS: &str =
    "import os, sys; os.closerange(3, 1100); os.execvp(sys.argv[1], sys.argv[1:])";

fn descriptors_of_the_caller_are_not_inherited(row: &mut Row) -> Ended {
    let folder = row.product().folder().join("opened");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("named"), "named\n").unwrap();
    row.product().give(&folder);
    let (file, _) = row.canary("sibling");
    let use_them = format!("sibling = 'sibling'\n{USE_DESCRIPTORS}");
    let before = ["sh", "-c", WITH_DESCRIPTORS, "sh", folder.to_str().unwrap(), file.to_str().unwrap()];
    let command = row.command_after(&before, &["-c", &probe(&use_them)]);
    let inside = row.attempts_of(command);
    let outside = row.outside_after(&before, &use_them);
    row.compare(&inside, &outside);

    // Named through its descriptor a folder is the folder, and shows nothing above it.
    let command = row
        .command_after(&before, &["--workspace", "/proc/self/fd/8", "--", "sh", "-c", "ls -A . ../sibling"]);
    let shown = row.finish_command(command);
    assert!(shown.stdout.contains("named") && !shown.stdout.contains("sibling"), "{shown:?}");
    // What the program has open itself is nothing that was named, and neither are the machine's folders.
    for (option, n) in (3..20).chain([63, 255, 1023]).flat_map(|n| [("--workspace", n), ("--in", n)]) {
        let place = format!("/proc/self/fd/{n}");
        let before = ["/usr/bin/python3", "-c", WITHOUT_DESCRIPTORS];
        let ran = row.finish_command(row.command_after(&before, &[option, &place, "--", "true"]));
        assert_eq!(ran.code, 125, "{option} {place}: {ran:?}");
    }
    for machine in ["/", "/proc", "/proc/self", "/sys", "/dev", "/run"] {
        let before = ["sh", "-c", WITH_DESCRIPTORS, "sh", machine, file.to_str().unwrap()];
        for option in ["--workspace", "--in"] {
            let command = row.command_after(&before, &[option, "/proc/self/fd/8", "--", "true"]);
            let ran = row.finish_command(command);
            assert_eq!(ran.code, 125, "{option} {machine}: {ran:?}");
            assert!(ran.stderr.contains("machine itself"), "{ran:?}");
        }
    }
    no_job_names_a_folder(row);
    Ended::Tested
}

/// A job of a batch has no working directory, no workspace and no inputs of its own choice.
fn no_job_names_a_folder(row: &mut Row) {
    let place = "/proc/self/fd/8";
    let code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd')), os.getcwd())";
    let jobs = [
        json!({"code": code, "cwd": place}),
        json!({"code": code, "workspace": place}),
        json!({"code": code, "in": [place]}),
        json!({"code": code, "policy": {"files": {"workspace": place}}}),
        json!({"code": code, "policy": {"files": {"inputs": [{"host": place, "guest": "/inputs/x"}]}}}),
        json!({"code": code, "files": {"/proc/self/fd/8/x": "x"}}),
        json!({"code": code, "files": {"../x": "x"}}),
        json!({"code": code}),
    ];
    let outcomes = row.outcomes(&[], &jobs);
    assert_eq!(outcomes.len(), jobs.len());
    for (job, outcome) in jobs.iter().zip(&outcomes).take(jobs.len() - 1) {
        assert_eq!((&outcome["end"], &outcome["ran"]), (&json!("refused"), &json!("no")), "{job}: {outcome}");
    }
    // The fourth descriptor is the folder that is being listed.
    assert_eq!(outcomes[jobs.len() - 1]["stdout"]["text"], "[0, 1, 2, 3] /workspace\n");
}

/// Tries to write programs through the links of processes that run them. What is held by `O_PATH` stays
/// reachable when nobody runs it any more, which is how a runtime was once replaced. `runtime` is a
/// process, `program` a file; both are of the host's inside, and scratch copies outside.
const WRITE_PROGRAMS: &str = r"
import os, subprocess, threading, time
def opens(path):
    for flags in [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND, os.O_WRONLY | os.O_TRUNC]:
        try:
            os.close(os.open(path, flags))
            return True
        except OSError as error: last = error
    raise last
def held(link, end):
    held = os.open(link, os.O_PATH)
    end()
    return opens(f'/proc/self/fd/{held}')
def end_child(child):
    child.kill()
    child.wait()
attempt('the runtime held and written', lambda: held(f'/proc/{runtime}/exe', end_runtime))
child = subprocess.Popen([program, '20'])
attempt('a program held and written', lambda: held(f'/proc/{child.pid}/exe', lambda: end_child(child)))
attempt('a program written', lambda: opens(program))
# While others are being executed, whatever any process runs is held, and written once it rests.
caught = {}
def hold_all():
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        for pid in filter(str.isdigit, os.listdir('/proc')) if everybody else [child.pid]:
            try:
                path = os.readlink(f'/proc/{pid}/exe')
                if path not in caught: caught[path] = os.open(f'/proc/{pid}/exe', os.O_PATH)
            except OSError: pass
child = subprocess.Popen([program, '20'])
thread = threading.Thread(target=hold_all)
thread.start()
while thread.is_alive():
    script = subprocess.Popen([program, '0'])
    script.wait()
end_child(child)
def any_caught():
    for path, fd in caught.items():
        try:
            if opens(f'/proc/self/fd/{fd}'): return path
        except OSError: pass
    return False
attempt('anything that is executed meanwhile', any_caught)
";

fn programs_that_run_the_sandbox_cannot_be_written(row: &mut Row) -> Ended {
    let folder = row.product().folder().to_owned();
    let copies = ["runtime", "program"].map(|name| {
        let copy = folder.join(name);
        std::fs::copy("/usr/bin/sleep", &copy).unwrap();
        row.product().give(&copy);
        copy
    });
    let _ = row.run(&["--", "true"]); // from here on the agent is kept
    let before = programs(row);
    let inside = "runtime, program, everybody = 1, '/usr/bin/sleep', True\nend_runtime = lambda: None\n";
    let outside = format!(
        "import subprocess\nof_runtime = subprocess.Popen([{:?}, '20'])\nruntime, program, everybody = of_runtime.pid, {:?}, False\ndef end_runtime():\n    of_runtime.kill()\n    of_runtime.wait()\n",
        copies[0], copies[1]
    );
    let inside = row.inside(&[], &format!("{inside}{WRITE_PROGRAMS}"));
    let outside = row.outside(&format!("{outside}{WRITE_PROGRAMS}"));
    row.compare(&inside, &outside);
    // A script that names what executes it: the agent's own program, if it were found that way.
    let script = row.product().file("script", "#!/proc/self/exe\n");
    row.product().give(&script);
    let ran = row.run(&["--timeout", "2s", script.to_str().unwrap()]);
    assert_ne!(ran.code, 0, "{ran:?}");
    // And in a pool, where the next sandbox is made while the program runs.
    let code = format!(
        "runtime, program, everybody = 1, '/usr/bin/sleep', True\nend_runtime = lambda: None\n{WRITE_PROGRAMS}"
    );
    let job = json!({"code": probe(&code)});
    for outcome in row.outcomes(&["--jobs", "2"], &[job.clone(), job]) {
        assert_eq!(outcome["exit_code"], 10, "{outcome}");
    }
    assert_eq!(programs(row), before, "the programs are as they were");
    Ended::Tested
}

/// Every program that takes part in a run: ours, the kept agent's, and those that were run inside.
fn programs(row: &Row) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = vec![];
    let mut folders = vec![row.product().state()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if entry.file_name().to_string_lossy().starts_with("cofferdam-guest") {
                found.push(entry.path());
            }
        }
    }
    assert!(!found.is_empty(), "the agent is kept");
    found.extend([row.product().program().to_owned(), "/usr/bin/python3".into(), "/usr/bin/sleep".into()]);
    found.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Looks for a process of the host's, and acts on it by its number; then on the parent. `marker` is in
/// the command line of the first, `secret` in its environment.
const MEET_PROCESSES: &str = r"
import glob, os, resource, signal
def anywhere(what, text):
    for path in glob.glob('/proc/[0-9]*/' + what):
        try:
            if text.encode() in open(path, 'rb').read(): return True
        except OSError: pass
    return False
attempt('seen by its command line', lambda: anywhere('cmdline', marker))
attempt('seen by its environment', lambda: anywhere('environ', secret))
tree = {1, os.getpid()}
attempt('any process but ours', lambda: [pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) not in tree] != [])
attempt('its entry in proc', lambda: os.stat(f'/proc/{victim}') and True)
attempt('its session', lambda: os.getsid(victim) and True)
attempt('its group', lambda: os.getpgid(victim) and True)
attempt('its priority', lambda: os.getpriority(os.PRIO_PROCESS, victim) is not None)
attempt('its cores', lambda: len(os.sched_getaffinity(victim)) > 0)
attempt('its limits', lambda: resource.prlimit(victim, resource.RLIMIT_NOFILE) and True)
attempt('its descriptor', lambda: os.pidfd_open(victim) and True)
attempt('signal 0', lambda: os.kill(victim, 0))
attempt('SIGCONT', lambda: os.kill(victim, signal.SIGCONT))
attempt('SIGCONT to its group', lambda: os.killpg(victim, signal.SIGCONT))
for name in ['environ', 'maps', 'mem', 'auxv', 'io', 'syscall']:
    attempt('parent ' + name, lambda: open(f'/proc/{parent}/{name}', 'rb').close() or True)
for name in ['root', 'cwd', 'fd', 'map_files']:
    attempt('parent ' + name, lambda: os.listdir(f'/proc/{parent}/{name}') is not None)
for name in ['exe', 'ns/mnt', 'ns/net']:
    attempt('parent ' + name, lambda: os.readlink(f'/proc/{parent}/{name}'))
attempt('parent limits', lambda: resource.prlimit(parent, resource.RLIMIT_CORE, (0, 0)) and True)
attempt('SIGTERM', lambda: os.kill(victim, signal.SIGTERM))
";

fn processes_of_the_host_can_neither_be_seen_nor_signalled(row: &mut Row) -> Ended {
    let secret = row.secret();
    let marker = format!("60.{}", std::process::id());
    let mut command = row.product().beside("setsid", ["sleep", &marker]);
    command.env("ROW_SECRET", &secret);
    // A leader of its own group, and so `setsid` executes the program itself.
    let mut victim = start(&mut command);
    let halves = |text: &str| format!("{:?} + {:?}", &text[..4], &text[4..]);
    let known =
        format!("marker, secret, victim = {}, {}, {}\n", halves(&marker), halves(&secret), victim.id());
    let own_parent = "import os\nparent = os.getppid()\n";
    let inside = row.inside(&[], &format!("{known}{own_parent}{MEET_PROCESSES}"));
    assert!(victim.try_wait().unwrap().is_none(), "the process of the host's is alive");
    // Outside a child stands for the parent, which there is the test itself.
    let child = "import subprocess\nchild = subprocess.Popen(['sleep', '20'])\nparent = child.pid\n";
    let outside = row.outside(&format!("{known}{child}{MEET_PROCESSES}\nchild.kill()\nchild.wait()\n"));
    row.compare(&inside, &outside);
    victim.wait().unwrap();
    // Whoever holds the sandbox outlives what its program sends, and answers.
    let signal = "import os, signal\nfor s in [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV]: os.kill(1, s)\nprint('alive')";
    let outcome = row.run(&["--json", "-c", signal]).json();
    assert_eq!(
        (&outcome["end"], &outcome["stdout"]["text"]),
        (&json!("exited"), &json!("alive\n")),
        "{outcome}"
    );
    Ended::Tested
}
