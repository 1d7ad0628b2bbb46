//! `cofferdam policy`: what policy files say, and what they say to something that a run asks for.

mod explain;
mod suggest;

use std::io::{self, Write};
use std::path::PathBuf;

use cofferdam_core::files::ALWAYS_HIDDEN;
use cofferdam_core::policy::Policy;
use miette::{GraphicalReportHandler, GraphicalTheme};

pub(crate) use explain::{Asked, explain};
pub(crate) use suggest::suggest;

use crate::files::value::{BadValue, write_size};
use crate::files::{HostEnvironment, PolicyFile, Rest, load_policy};

/// Reads each file and says of each that it is right, or what is wrong and where.
///
/// Gives whether all of them are right. Nothing of them is used. `colour` is for a terminal.
///
/// # Errors
///
/// Where `out` can't be written.
pub(crate) fn check(
    paths: &[PathBuf],
    environment: &HostEnvironment<'_>,
    colour: bool,
    out: &mut dyn Write,
) -> io::Result<bool> {
    let theme = if colour { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let reports = GraphicalReportHandler::new_themed(theme);
    let mut all_right = true;
    for path in paths {
        match load_policy(path, environment) {
            Ok(_) => writeln!(out, "ok: {}", path.to_string_lossy().escape_debug())?,
            Err(error) => {
                all_right = false;
                let mut report = String::new();
                reports.render_report(&mut report, &error).map_err(io::Error::other)?;
                writeln!(out, "{report}")?;
            }
        }
    }
    Ok(all_right)
}

/// How `show` writes a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One JSON object.
    Json,
    /// A policy file.
    Toml,
}

/// A policy can't be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShowError {
    /// A value has no place in a policy file.
    #[error(transparent)]
    Value(#[from] BadValue),
    /// The output can't be written.
    #[error("could not write the policy: {0}")]
    Write(#[from] io::Error),
}

/// Writes the policy that a run would be judged by, in the words of a policy file: one that is
/// read back is the same policy.
///
/// # Errors
///
/// [`ShowError`] if a value isn't text, or `out` can't be written.
pub(crate) fn show(policy: &Policy, rest: &Rest, form: Form, out: &mut dyn Write) -> Result<(), ShowError> {
    let file = PolicyFile::of(policy, rest)?;
    match form {
        Form::Json => {
            serde_json::to_writer_pretty(&mut *out, &file).map_err(io::Error::from)?;
            writeln!(out)?;
        }
        Form::Toml => {
            writeln!(
                out,
                "# What a run would be judged by: defaults, files and flags, within this node's ceiling."
            )?;
            if policy.limits.disk_bytes.is_none() {
                let disk = write_size(policy.limits.disk_bytes());
                writeln!(out, "# limits.disk is left out, and so half of the memory: {disk}")?;
            }
            if policy.files.workspace.is_some() {
                writeln!(
                    out,
                    "# never shown of the workspace, besides files.hide: {}",
                    ALWAYS_HIDDEN.join(" ")
                )?;
            }
            out.write_all(toml::to_string(&file).map_err(io::Error::other)?.as_bytes())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ffi::OsString;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use cofferdam_core::capability::Capability;
    use cofferdam_core::files::{GuestPath, Pattern, Python, Shown, Workspace};
    use cofferdam_core::policy::{
        BackendName, Ceiling, Cpus, CredentialRule, FilesLayer, HostPattern, Layer, LimitsLayer, NetworkRule,
        Profile, Protocol,
    };
    use cofferdam_core::request::Variable;

    use super::*;
    use crate::files::Loaded;

    fn host(name: &str) -> Option<OsString> {
        name.starts_with("HOST").then(|| format!("value of {name}").into())
    }

    fn examples() -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies");
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    }

    fn resolved(layers: &[Layer]) -> Policy {
        Policy::resolve(layers, &Ceiling::default()).unwrap()
    }

    /// What `show` writes is read back.
    fn read_back(policy: &Policy, rest: &Rest) -> Loaded {
        let mut shown = vec![];
        show(policy, rest, Form::Toml, &mut shown).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shown.toml");
        fs::write(&path, &shown).unwrap();
        load_policy(&path, &host).unwrap_or_else(|error| {
            panic!("{}\n{:?}", String::from_utf8_lossy(&shown), miette::Report::new(error))
        })
    }

    #[test]
    fn check_says_of_each_file_whether_it_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let wrong = folder.path().join("wrong.toml");
        fs::write(&wrong, "version = 1\nprofil = 1\n").unwrap();
        let mut out = vec![];
        let mut paths = examples();
        assert!(check(&paths, &host, false, &mut out).unwrap());
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("ok: ")).count(), paths.len());
        assert!(paths.len() >= 2);

        paths.insert(0, wrong);
        paths.push(folder.path().join("none.toml"));
        let mut out = vec![];
        assert!(!check(&paths, &host, false, &mut out).unwrap());
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("wrong.toml") && text.contains("did you mean `profile`?"), "{text}");
        assert!(
            text.contains("full.toml") && text.contains("none.toml"),
            "one wrong file hides no other: {text}"
        );
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn the_examples_show_as_themselves() {
        for path in examples() {
            let Loaded { layer, rest } = load_policy(&path, &host).unwrap();
            let policy = resolved(&[layer]);
            let back = read_back(&policy, &rest);
            assert_eq!(resolved(&[back.layer]), policy, "{}", path.display());
            assert_eq!(back.rest, rest);
        }
    }

    #[test]
    fn the_default_policy_is_shown_with_every_limit() {
        let mut shown = vec![];
        show(&resolved(&[]), &Rest::default(), Form::Toml, &mut shown).unwrap();
        let expected = "\
# What a run would be judged by: defaults, files and flags, within this node's ceiling.
# limits.disk is left out, and so half of the memory: 512MiB
version = 1
profile = \"untrusted\"
backend = \"auto\"

[limits]
timeout = \"5m\"
memory = \"1GiB\"
cpus = 1
pids = 256
files = 100000
bytes_out = \"100MiB\"
requests = 1000
connections = 256
hosts = 200
";
        assert_eq!(String::from_utf8(shown).unwrap(), expected);
    }

    #[test]
    fn the_json_form_says_the_same() {
        let policy = resolved(&[some_layer(7)]);
        let mut json = vec![];
        show(&policy, &Rest::default(), Form::Json, &mut json).unwrap();
        let mut toml = vec![];
        show(&policy, &Rest::default(), Form::Toml, &mut toml).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let toml: toml::Value = toml::from_str(std::str::from_utf8(&toml).unwrap()).unwrap();
        assert_eq!(serde_json::to_value(toml).unwrap(), json);
    }

    #[test]
    fn any_policy_that_is_shown_reads_back_as_the_same_policy() {
        for seed in 0..256 {
            let policy = resolved(&[some_layer(seed), some_layer(seed / 3)]);
            let back = resolved(&[read_back(&policy, &Rest::default()).layer]);
            assert_eq!(back, policy, "seed {seed}");
            assert_eq!(back.canonical(), policy.canonical());
        }
    }

    fn shown(host: &str, guest: &str) -> Shown {
        Shown { host: host.into(), guest: GuestPath::new(Path::new(guest)).unwrap() }
    }

    /// A layer in which each bit of the seed decides about some keys.
    fn some_layer(seed: u32) -> Layer {
        let bit = |at: u32| seed >> at & 1 == 1;
        let when = |at: u32, value: u64| bit(at).then_some(value);
        let rules = [
            ("a.test", Protocol::Https, vec![443]),
            ("*.b.test", Protocol::Http, vec![80, 8080]),
            ("2606:4700::1111", Protocol::Tcp, vec![5432]),
            ("d.test", Protocol::TlsPassthrough, vec![443]),
        ];
        let network = rules.into_iter().enumerate().filter(|(at, _)| bit(*at as u32));
        let network = network.map(|(_, (host, protocol, ports))| {
            let mut rule = NetworkRule::https(HostPattern::parse(host).unwrap());
            (rule.protocol, rule.ports) = (protocol, ports);
            rule.private = bit(4);
            if matches!(protocol, Protocol::Http | Protocol::Https) && bit(5) {
                rule.methods = Some(vec!["GET".into()]);
                rule.paths = Some(vec!["/a/**".into(), "/\"".replace('"', "%22")]);
            }
            rule
        });
        let mut network: Vec<_> = network.collect();
        let mut credentials = vec![];
        if bit(0) && bit(6) && seed > 200 {
            network[0].credential = Some("gh".into());
            credentials.push(CredentialRule {
                name: "gh".into(),
                issuer: "github-app.acme".into(),
                ttl: bit(7).then_some(Duration::from_millis(1500)),
                ends_on_misuse: bit(1),
            });
        }
        let set = [("B", "2 \"quoted\" \u{7}\n"), ("A", "1"), ("a.b", "")];
        let passed = ["HOST_B", "HOST_A"];
        Layer {
            profile: bit(1).then_some(Profile::Internal),
            backend: bit(2).then_some(Some(BackendName::Container)),
            limits: LimitsLayer {
                timeout: when(0, 61).map(Duration::from_secs),
                grace: when(1, 1500).map(Duration::from_millis),
                memory_bytes: when(2, (1 << 20) + 1),
                cpus: bit(3).then(|| Cpus::from_thousandths(1 + 10 * (seed + 1)).unwrap()),
                pids: bit(4).then_some(u32::MAX),
                disk_bytes: when(5, 0),
                files: when(6, 0),
                output_bytes: when(7, 1 << 40),
                bytes_out: when(0, 1 << 20),
                requests: when(1, 0),
                connections: when(2, 1),
                hosts: when(3, 7),
            },
            files: FilesLayer {
                workspace: bit(1).then(|| Workspace { host: "/opt".into(), copy: false }),
                shown: if bit(2) {
                    vec![shown("/opt", "/inputs/opt"), shown("/usr", "/a b")]
                } else {
                    vec![]
                },
                hide: if bit(3) { vec![Pattern::new("**/*.key").unwrap()] } else { vec![] },
                keep: if bit(4) { vec![Pattern::new("a\"b").unwrap()] } else { vec![] },
                python: None,
            },
            environment: cofferdam_core::policy::Environment {
                set: set[..seed as usize % 4]
                    .iter()
                    .map(|(name, value)| Variable::new(*name, *value).unwrap())
                    .collect(),
                passed: passed[..seed as usize % 3]
                    .iter()
                    .map(|name| Variable::new(*name, host(name).unwrap().into_encoded_bytes()).unwrap())
                    .collect(),
            },
            network,
            credentials,
            accept_gaps: if bit(3) { BTreeSet::from([Capability::Cpu]) } else { BTreeSet::new() },
            require: if bit(5) { BTreeSet::from([Capability::SeparateKernel]) } else { BTreeSet::new() },
        }
    }

    #[test]
    fn a_value_that_no_file_can_hold_is_refused_and_not_bent() {
        let mut policy = resolved(&[]);
        policy.environment.set = vec![Variable::new("A", vec![0xff]).unwrap()];
        let mut out = vec![];
        let error = show(&policy, &Rest::default(), Form::Toml, &mut out).unwrap_err();
        assert!(matches!(error, ShowError::Value(_)), "{error}");
        assert!(out.is_empty());
    }

    #[test]
    fn what_is_never_shown_of_a_workspace_is_said_beside_it() {
        let workspace = Some(Workspace { host: "/opt".into(), copy: false });
        let files = FilesLayer { workspace, ..Default::default() };
        let mut policy = resolved(&[Layer { files, ..Default::default() }]);
        let mut out = vec![];
        show(&policy, &Rest::default(), Form::Toml, &mut out).unwrap();
        let shown = String::from_utf8(out).unwrap();
        assert!(
            shown.contains("workspace = \"/opt\"") && shown.contains("**/.env* **/.git/hooks"),
            "{shown}"
        );
        policy.files.python = Some(Python { executable: self::shown("/x", "/x").guest, venv: None });
        assert!(show(&policy, &Rest::default(), Form::Toml, &mut vec![]).is_err(), "no file can hold that");
    }

    #[test]
    fn a_value_that_was_passed_in_is_not_shown() {
        let mut policy = resolved(&[]);
        policy.environment.passed = vec![Variable::new("TOKEN", "hunter2").unwrap()];
        let mut out = vec![];
        show(&policy, &Rest::default(), Form::Toml, &mut out).unwrap();
        let shown = String::from_utf8(out).unwrap();
        assert!(shown.contains("pass = [\"TOKEN\"]") && !shown.contains("hunter2"), "{shown}");
    }
}
