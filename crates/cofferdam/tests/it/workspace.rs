//! A person's own files, interpreter and build in a sandbox, from the command line.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use cofferdam_testkit::product::finish;
use serde_json::json;

use crate::{needs_root, ordinary, product};

/// A name and what it holds, for every file below a folder, `.git` excepted.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    fn walk(top: &Path, folder: &Path, into: &mut Vec<(String, Vec<u8>)>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if entry.file_type().unwrap().is_dir() {
                if entry.file_name() != ".git" {
                    walk(top, &path, into);
                }
            } else {
                let name = path.strip_prefix(top).unwrap().display().to_string();
                into.push((name, fs::read(&path).unwrap_or_default()));
            }
        }
    }
    let mut all = vec![];
    walk(folder, folder, &mut all);
    all.sort();
    all
}

fn git(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@test", "-c", "core.hooksPath=/dev/null"])
        .arg("-C")
        .arg(folder)
        .args(args)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null")
        .output()
        .unwrap();
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A repository of a C program with a makefile that builds it and writes its version into a source.
fn repository(folder: &Path) {
    fs::create_dir_all(folder.join("src")).unwrap();
    for (name, text) in [
        (
            "Makefile",
            "prog: src/main.c src/version.h\n\tcc -O1 -o prog src/main.c\n\t./prog > output.txt\n\nsrc/version.h:\n",
        ),
        (
            "src/main.c",
            "#include <stdio.h>\n#include \"version.h\"\nint main(void) { printf(\"v%d\\n\", VERSION); return 0; }\n",
        ),
        ("src/version.h", "#define VERSION 1\n"),
        ("notes.txt", "one\ntwo\nthree\n"),
        ("old.txt", "goes\n"),
        (".gitignore", "prog\n"),
    ] {
        fs::write(folder.join(name), text).unwrap();
    }
    git(folder, &["init", "-q"]);
    git(folder, &["add", "-A"]);
    git(folder, &["commit", "-qm", "one"]);
}

const BUILD: &str =
    "set -e; echo '#define VERSION 2' > src/version.h; echo four >> notes.txt; rm old.txt; make -s";

#[test]
fn a_build_in_a_repository_comes_out_as_a_diff_and_the_repository_is_as_it_was() {
    needs_root!();
    if Command::new("make").arg("-v").output().is_err() || Command::new("git").arg("-v").output().is_err() {
        cofferdam_testkit::skip!("there is no make, or no git");
    }
    let product = product();
    let (repo, copy) = (product.folder().join("repo"), product.folder().join("copy"));
    repository(&repo);
    repository(&copy);
    let (before, status) = (files(&repo), git(&repo, &["rev-parse", "HEAD"]));
    let diff = product.folder().join("build.diff");
    let workspace = ["--workspace", repo.to_str().unwrap(), "--diff", diff.to_str().unwrap()];
    let ran = product.run(&[&workspace[..], &["--", "sh", "-c", BUILD]].concat()).exits(0);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("by hash alone") && ran.stderr.contains("prog"), "{ran:?}");
    assert_eq!(files(&repo), before);
    assert_eq!(git(&repo, &["rev-parse", "HEAD"]), status);
    assert_eq!(git(&repo, &["status", "--porcelain"]), "");

    // The same in a copy, without a sandbox, as git sees it.
    assert!(Command::new("sh").args(["-c", BUILD]).current_dir(&copy).status().unwrap().success());
    let (built, expected) = (files(&copy), git(&copy, &["diff", "HEAD"]));
    let added = git(&copy, &["ls-files", "--others", "--exclude-standard"]);
    assert_eq!(added, "output.txt\n");

    // What we wrote makes of the repository what the build made of the copy, but for the program.
    git(&repo, &["apply", "--index", diff.to_str().unwrap()]);
    let without_program = |files: Vec<(String, Vec<u8>)>| -> Vec<_> {
        files.into_iter().filter(|(name, _)| name != "prog").collect()
    };
    assert_eq!(without_program(files(&repo)), without_program(built));
    let tracked = git(&repo, &["diff", "HEAD", "--", ".", ":!output.txt"]);
    assert_eq!(tracked, expected);
    let text = fs::read_to_string(&diff).unwrap();
    assert!(text.contains("prog"), "a program that was built is named by its hash: {text}");
}

#[test]
fn a_script_reads_its_data_and_leaves_results() {
    needs_root!();
    let product = product();
    let folder = product.folder().join("work");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("data.csv"), "month,sales\njan,3\nfeb,5\n").unwrap();
    fs::write(folder.join("helper.py"), "def total(rows): return sum(int(row['sales']) for row in rows)\n")
        .unwrap();
    let script = "import csv, helper\ntotal = helper.total(csv.DictReader(open('data.csv')))\nprint(total, file=open('total.txt', 'w'))\n";
    fs::write(folder.join("report.py"), script).unwrap();
    let mut command =
        product.command(["run", "--profile", "internal", "--workspace", ".", "--out", "result", "report.py"]);
    command.current_dir(&folder);
    let ran = finish(command).exits(0);
    assert_eq!(fs::read_to_string(folder.join("result/files/total.txt")).unwrap(), "8\n", "{ran:?}");
    let changes: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("result/changes.json")).unwrap()).unwrap();
    let added: Vec<_> =
        changes["added"].as_array().unwrap().iter().map(|entry| entry["path"].clone()).collect();
    assert!(added.contains(&json!("total.txt")), "{changes}");
    assert!(!folder.join("total.txt").exists());

    // A second time, with the first result lying there: it isn't shown, and is replaced.
    let mut command =
        product.command(["run", "--profile", "internal", "--workspace", ".", "--out", "result", "--"]);
    command.args(["sh", "-c", "ls; echo x > y"]).current_dir(&folder);
    let ran = finish(command).exits(0);
    assert!(!ran.stdout.contains("result"), "{ran:?}");
    assert!(folder.join("result/files/y").exists() && !folder.join("result/files/total.txt").exists());
}

#[test]
fn what_a_tool_of_the_host_would_run_stays_inside_unless_it_is_kept() {
    needs_root!();
    let product = product();
    let (folder, out) = (product.folder().join("work"), product.folder().join("out"));
    fs::create_dir(&folder).unwrap();
    let plant = "mkdir -p .git/hooks .vscode; echo '#!/bin/sh' > .git/hooks/pre-commit; echo '{}' > .vscode/tasks.json
        echo x > plain; ln -s /etc/shadow link; ln -s ../../../etc/shadow up; mkfifo pipe; printf x > \"$(printf 'a\\033[2Jb')\"";
    let options = ["--workspace", folder.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let run = |more: &[&str]| product.outcome(&[&options[..], more, &["--", "sh", "-c", plant]].concat());
    let outcome = run(&[]);
    let whys: Vec<_> = outcome["rejected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["path"].as_str().unwrap(), r["why"].as_str().unwrap()))
        .collect();
    for expected in [
        (".git/hooks/pre-commit", "host_exec"),
        (".vscode/tasks.json", "host_exec"),
        ("link", "symlink"),
        ("up", "symlink"),
        ("pipe", "type"),
    ] {
        assert!(whys.contains(&expected), "{expected:?} in {whys:?}");
    }
    assert!(whys.iter().any(|(path, why)| *why == "name" && !path.contains('\u{1b}')), "{whys:?}");
    assert_eq!(outcome["artifacts"].as_array().unwrap().len(), 1, "{outcome}");
    assert_eq!(files(&out.join("files")).len(), 1);
    let kept = run(&["--keep", ".vscode/tasks.json"]);
    assert!(kept["artifacts"].to_string().contains(".vscode/tasks.json"), "{kept}");
    let log = product.call(["audit", "show", "last"]).stdout;
    assert!(log.contains("artifact.quarantined") && log.contains("artifact.rejected"), "{log}");
}

#[test]
fn an_ordinary_user_changes_their_own_files_inside_and_others_only_in_a_copy() {
    needs_root!(); // to make a file of somebody else's
    let product = ordinary();
    let folder = product.folder().join("work");
    fs::create_dir(&folder).unwrap();
    for name in ["mine", "theirs"] {
        fs::write(folder.join(name), "text\n").unwrap();
    }
    fs::write(folder.join(".env"), "SECRET=1\n").unwrap();
    product.give(&folder);
    std::os::unix::fs::chown(folder.join("theirs"), Some(0), Some(0)).unwrap();
    let before = files(&folder);
    let gaps = product.accepting();
    let run = |more: &[&str], script: &str| {
        let mut words = vec!["run", "--profile", "internal", "--workspace", folder.to_str().unwrap()];
        words.extend(gaps.iter().map(String::as_str));
        words.extend(more);
        words.extend(["--", "sh", "-c", script]);
        product.call(words)
    };
    let ran = run(&[], "cat theirs && echo x >> mine && ls -A && echo x >> theirs");
    assert!(ran.stdout.contains("text") && !ran.stdout.contains(".env"), "{ran:?}");
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("theirs") && ran.stderr.contains("--copy"), "the way out is named: {ran:?}");
    let out = product.folder().join("out");
    let ran = run(&["--copy", "--out", out.to_str().unwrap()], "echo x >> theirs; echo x >> mine").exits(0);
    assert_eq!(fs::read_to_string(out.join("files/theirs")).unwrap(), "text\nx\n", "{ran:?}");
    assert_eq!(files(&folder), before);
}

#[test]
fn a_folder_whose_names_cannot_be_listed_is_not_shown_since_it_may_hold_hidden_ones() {
    needs_root!(); // to make a folder of somebody else's
    let product = ordinary();
    let folder = product.folder().join("work");
    for (name, mode) in [("closed", 0o711), ("open", 0o755)] {
        let below = folder.join(name);
        fs::create_dir_all(&below).unwrap();
        fs::write(below.join(".env"), "SECRET=1\n").unwrap();
        fs::write(below.join("plain"), "plain\n").unwrap();
        fs::set_permissions(&below, fs::Permissions::from_mode(mode)).unwrap();
    }
    product.give(&folder);
    std::os::unix::fs::chown(folder.join("closed"), Some(0), Some(0)).unwrap();
    let gaps = product.accepting();
    for copy in [&[][..], &["--copy"]] {
        let mut words = vec!["run", "--profile", "internal", "--workspace", folder.to_str().unwrap()];
        words.extend(gaps.iter().map(String::as_str));
        words.extend(copy);
        words.extend(["--", "sh", "-c", "cat closed/plain closed/.env open/.env; cat open/plain; ls"]);
        let ran = product.call(words).exits(0);
        assert_eq!(ran.stdout, "plain\nopen\n", "{ran:?}");
    }
}

#[test]
fn a_report_is_plotted_with_packages_of_a_virtual_environment() {
    needs_root!();
    let product = product();
    let folder = product.folder().join("work");
    fs::create_dir(&folder).unwrap();
    let in_folder = |words: &[&str]| {
        Command::new(words[0])
            .args(&words[1..])
            .current_dir(&folder)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !in_folder(&["python3", "-m", "venv", ".venv"])
        || !in_folder(&[".venv/bin/pip", "install", "-q", "matplotlib"])
    {
        cofferdam_testkit::skip!("no virtual environment can be made, or no package can be installed here");
    }
    fs::write(folder.join("data.csv"), "month,sales\njan,3\nfeb,5\nmar,9\n").unwrap();
    fs::write(
        folder.join("report.py"),
        "import csv, matplotlib, sys
matplotlib.use('Agg')
import matplotlib.pyplot as plt
rows = list(csv.DictReader(open('data.csv')))
plt.plot([row['month'] for row in rows], [int(row['sales']) for row in rows])
plt.savefig('plot.png')
print('total', sum(int(row['sales']) for row in rows), sep=',', file=open('table.csv', 'w'))
print(sys.prefix)
",
    )
    .unwrap();
    let mut command =
        product.command(["run", "--profile", "internal", "--workspace", ".", "--venv", ".venv"]);
    command.args(["--out", "result", "report.py"]).current_dir(&folder);
    let ran = finish(command).exits(0);
    assert_eq!(Path::new(ran.stdout.trim()), folder.join(".venv").canonicalize().unwrap());
    assert_eq!(fs::read_to_string(folder.join("result/files/table.csv")).unwrap(), "total,17\n");
    let plot = fs::read(folder.join("result/files/plot.png")).unwrap();
    assert!(plot.starts_with(b"\x89PNG") && plot.len() > 1000, "{} bytes", plot.len());
    assert_eq!(fs::read_dir(folder.join("result/files")).unwrap().count(), 2);
}

#[test]
fn an_environment_that_leads_to_another_part_of_the_workspace_is_refused() {
    use std::os::unix::fs::symlink;
    let product = product();
    let repository = product.folder().join("repository");
    for folder in ["backend/bin", "backend/lib/python3.11", ".venv/bin"] {
        fs::create_dir_all(repository.join(folder)).unwrap();
    }
    let python = fs::canonicalize("/usr/bin/python3").unwrap();
    fs::copy(python, repository.join("backend/bin/python3")).unwrap();
    fs::write(repository.join("backend/lib/python3.11/os.py"), "").unwrap();
    fs::write(repository.join("backend/.env"), "SECRET=1").unwrap();
    symlink("../../backend/bin/python3", repository.join(".venv/bin/python")).unwrap();
    fs::write(repository.join(".venv/pyvenv.cfg"), "home = /usr/bin\n").unwrap();
    let (workspace, venv) = (repository.to_str().unwrap(), repository.join(".venv"));
    let words = ["--workspace", workspace, "--venv", venv.to_str().unwrap(), "-c", "print(1)"];
    let ran = product.run(&words).exits(125);
    assert!(ran.stderr.contains("backend would be shown whole, and it is in the workspace"), "{ran:?}");
}
