//! The Wasm backend's inner half by itself, without a jail: makes templates, runs scripts, measures.
//!
//! ```text
//! cargo run --release -p cofferdam-backends --example wasm -- setup WHEEL FOLDER NAME [MODULE...]
//! cargo run --release -p cofferdam-backends --example wasm -- run FOLDER NAME SCRIPT [ARGUMENT...]
//! cargo run --release -p cofferdam-backends --example wasm -- module FOLDER FILE [ARGUMENT...]
//! cargo run --release -p cofferdam-backends --example wasm -- bench FOLDER NAME RUNS [CODE]
//! ```

#[path = "../tests/wasm/alone.rs"]
mod alone;

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use cofferdam_backends::wasm::setup::{self, Folder, Recipe, Template};
use cofferdam_backends::wasm::wire::FromWorker;
use cofferdam_backends::wasm::worker;
use cofferdam_sys::fd;

use alone::{Result, Worker, preopen};

/// More than any of these needs.
const MEMORY_BYTES: u64 = 1 << 30;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["worker"] => Ok(worker::main()?),
        ["setup", wheel, folder, name, preload @ ..] => make(wheel, folder, name, preload),
        ["run", folder, name, script, ..] => {
            let mut worker = Worker::python(command()?, &template(folder, name)?, MEMORY_BYTES)?;
            let source = fs::read(script)?;
            worker.start(Some((script, &source)), &words[3..], &[], &streams()?)?;
            println!("{:?}", worker.end()?);
            Ok(())
        }
        ["module", folder, file, ..] => {
            let start = Instant::now();
            let prepared = setup::module(&fs::read(file)?, &Folder::open(Path::new(folder))?)?;
            eprintln!("prepared in {:?}", start.elapsed());
            let here = |scratch: &Path| vec![preopen(".", scratch, true)];
            let mut worker =
                Worker::open(command()?, (&prepared.module, None), prepared.kind, MEMORY_BYTES, here)?;
            worker.start(None, &words[2..], &[], &streams()?)?;
            println!("{:?}", worker.end()?);
            Ok(())
        }
        ["bench", folder, name, runs] => bench(&template(folder, name)?, runs.parse()?, "print(1+1)"),
        ["bench", folder, name, runs, code] => bench(&template(folder, name)?, runs.parse()?, code),
        _ => Err("see the top of examples/wasm.rs".into()),
    }
}

fn command() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("worker");
    Ok(command)
}

fn streams() -> Result<[OwnedFd; 3]> {
    let stdin = io::stdin().as_fd().try_clone_to_owned()?;
    Ok([stdin, io::stdout().as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?])
}

fn make(wheel: &str, folder: &str, name: &str, preload: &[&str]) -> Result<()> {
    let preload = preload.iter().map(|&name| name.to_owned()).collect();
    let recipe = Recipe { name: name.to_owned(), preload, asked: vec![], packages: vec![] };
    let start = Instant::now();
    let mut progress = |step| eprintln!("{:6.1} s {step:?}", start.elapsed().as_secs_f64());
    let template =
        setup::python(Some(Path::new(wheel)), &recipe, &Folder::open(Path::new(folder))?, &mut progress)?;
    eprintln!("{:6.1} s done: {}", start.elapsed().as_secs_f64(), template.module.display());
    eprintln!("it begins with {} MiB, {} modules", template.memory_bytes >> 20, template.importable.len());
    Ok(())
}

fn template(folder: &str, name: &str) -> Result<Template> {
    let found = setup::find(&Folder::open(Path::new(folder))?, name)?;
    Ok(found.ok_or("there is no such template")?)
}

fn bench(template: &Template, runs: usize, code: &str) -> Result<()> {
    let opening = Instant::now();
    let mut worker = Worker::python(command()?, template, MEMORY_BYTES)?;
    println!("open: {:?}; private memory {} KiB", opening.elapsed(), worker.private_kib()?);
    let (mut first, mut ended, mut clean) = (vec![], vec![], vec![]);
    let mut after = 0;
    for run in 0..runs {
        let (read, write) = fd::pipe()?;
        let streams = [File::open("/dev/null")?.into(), write, File::create("/dev/null")?.into()];
        let start = Instant::now();
        worker.start(Some(("a.py", code.as_bytes())), &["a.py"], &["PYTHONUNBUFFERED=1"], &streams)?;
        drop(streams);
        let mut output = [0; 4096];
        let count = File::from(read).read(&mut output)?;
        first.push(start.elapsed());
        if run == 0 {
            println!("first: {:?} after {:?}", String::from_utf8_lossy(&output[..count]), start.elapsed());
        }
        match worker.end()? {
            FromWorker::Exited(0) => ended.push(start.elapsed()),
            other => return Err(format!("{other:?}").into()),
        }
        if run + 1 == runs {
            after = worker.private_kib()?;
        }
        worker.renew()?;
        clean.push(start.elapsed());
    }
    let total: Duration = clean.iter().sum();
    for (what, times) in [("first output", &mut first), ("exited", &mut ended), ("clean", &mut clean)] {
        times.sort();
        let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
        println!("{what:>12}: min {:.3} ms, p50 {:.3}, p90 {:.3}, p99 {:.3}", at(0), at(50), at(90), at(99));
    }
    let idle = worker.private_kib()?;
    println!(
        "{:.0} runs a second; private memory {after} KiB, renewed {idle} KiB",
        runs as f64 / total.as_secs_f64()
    );
    Ok(())
}
