//! Programs that people use, unchanged and told of no proxy: each reaches a host that the policy names, and is
//! refused another with a reason that can be read.
//!
//! All of them run as root and as an ordinary user. `.ci/run` installs them; one that a machine lacks is a test that is
//! skipped by name.

mod database;
mod index;
mod packages;
mod programs;
mod tools;

use std::path::{Path, PathBuf};
use std::process::Command;

use cofferdam_testkit::origins::Net;
use cofferdam_testkit::product::{Product, Ran, finish};
use serde_json::Value;

use crate::{ordinary, product};

/// A product in a network of its own, whose policy names `api.test` and `db.test`.
struct Place {
    net: Net,
    product: Product,
    accepting: Vec<String>,
}

/// The rules of every run here.
const RULES: [&str; 4] = ["--allow", "api.test", "--allow", "tcp://db.test:5432"];

/// What the refusal of HTTP has in its status line.
const REASON: &str = "Cofferdam: host_not_allowed, needs --allow other.test";

impl Place {
    fn new(product: Product) -> Result<Place, String> {
        let net = Net::start()?;
        net.settle(&product);
        Ok(Place { net, accepting: product.accepting(), product })
    }

    /// `run` with more options and a program.
    fn run(&self, options: &[&str], program: &[&str]) -> Ran {
        let mut words = vec!["run", "--profile", "internal", "--quiet"];
        words.extend(self.accepting.iter().map(String::as_str));
        words.extend(RULES);
        words.extend(options);
        words.extend(program);
        self.net.run(&self.product.command(words))
    }

    /// The same, and the Outcome.
    fn outcome(&self, options: &[&str], program: &[&str]) -> Value {
        self.run(&[&["--json"], options].concat(), program).json()
    }

    /// A program that reaches an allowed host: it succeeds, and its output has these words.
    fn reaches(&self, options: &[&str], program: &[&str], words: &str) {
        let ran = self.run(options, program);
        assert!(ran.code == 0 && ran.stdout.contains(words), "{program:?}: {ran:?}");
        assert!(!self.net.seen().arrivals.is_empty(), "{program:?}: what it reached is the far end");
    }

    /// A program that wants another host: it fails and says why in these words, the Outcome has the denial,
    /// and nothing was sent.
    fn is_refused(&self, options: &[&str], program: &[&str], words: &str) {
        let outcome = self.outcome(options, program);
        let text = |stream: &str| outcome[stream]["text"].as_str().unwrap_or_default().to_owned();
        let said = text("stdout") + &text("stderr");
        assert_ne!(outcome["exit_code"], 0, "{program:?}: {outcome:#}");
        assert!(said.contains(words), "{program:?}: {outcome:#}");
        let denials = outcome["denials"].as_array().unwrap();
        let is_it = |denial: &&Value| denial["host"] == "other.test" && denial["code"] == "host_not_allowed";
        assert!(denials.iter().any(|denial| is_it(&denial)), "{program:?}: {outcome:#}");
        let seen = self.net.seen();
        assert!(seen.is_nothing(), "{program:?}: {:?} {:?}", seen.places(), seen.names());
    }

    /// A folder that is shown inside at `/inputs/NAME`.
    fn shown(&self, name: &str) -> PathBuf {
        let folder = self.product.folder().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// The options that show it.
    fn showing(&self, folder: &Path) -> [String; 2] {
        self.product.give(folder);
        ["--in".to_owned(), folder.display().to_string()]
    }
}

/// Does the same as root and as an ordinary user, if this machine has these programs.
fn for_each_user(test: &str, programs: &[&str], tries: impl Fn(&Place)) {
    let skipped = |why: &str| cofferdam_testkit::record_skip(test, why);
    if let Some(missing) = programs.iter().find(|program| !Path::new(program).exists()) {
        return skipped(&format!("there is no {missing}"));
    }
    for product in [product(), ordinary()] {
        match Place::new(product) {
            Ok(place) => tries(&place),
            Err(why) => return skipped(&why),
        }
    }
}

/// The name of a test in here, for whoever records that it is skipped.
macro_rules! this_test {
    ($name:literal) => {
        concat!(module_path!(), "::", $name)
    };
}
use this_test;

/// Runs a command of the host's that has to succeed: something that a test makes.
fn make(command: &mut Command) {
    let mut owned = Command::new(command.get_program());
    owned.args(command.get_args());
    command.get_envs().for_each(|(name, value)| {
        owned.env(name, value.unwrap_or_default());
    });
    if let Some(folder) = command.get_current_dir() {
        owned.current_dir(folder);
    }
    let ran = finish(owned);
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn no_program_is_told_of_a_proxy() {
    for_each_user(this_test!("no_program_is_told_of_a_proxy"), &[], |place| {
        let ran = place.run(&[], &["--", "env"]).exits(0);
        assert!(!ran.stdout.to_lowercase().contains("proxy"), "{ran:?}");
    });
}
