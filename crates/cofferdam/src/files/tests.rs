//! Claims about whole policy files: what is refused, where the finger points, and that extending
//! never widens.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use cofferdam_core::capability::Capability;
use cofferdam_core::policy::{BackendName, Ceiling, Policy, Profile, Protocol};
use cofferdam_core::request::Variable;
use miette::{GraphicalReportHandler, GraphicalTheme};
use tempfile::TempDir;

use super::error::Source;
use super::*;

/// A folder of policy files.
struct Folder(TempDir);

impl Folder {
    fn new(files: &[(&str, &str)]) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        for (name, text) in files {
            fs::write(folder.path(name), text).unwrap();
        }
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn load(&self, name: &str) -> Result<Loaded, FileError> {
        load_policy(&self.path(name), &host)
    }

    fn refused(&self, name: &str) -> String {
        render(&self.load(name).map(|loaded| loaded.layer).unwrap_err())
    }
}

/// A host with two variables.
fn host(name: &str) -> Option<OsString> {
    match name {
        "TZ" => Some("Europe/Berlin".into()),
        "TOKEN" => Some("hunter2".into()),
        _ => None,
    }
}

fn render(error: &FileError) -> String {
    let mut text = String::new();
    let theme = GraphicalTheme::unicode_nocolor();
    GraphicalReportHandler::new_themed(theme).with_width(400).render_report(&mut text, error).unwrap();
    text
}

fn loaded(text: &str) -> Loaded {
    match Folder::new(&[("policy.toml", text)]).load("policy.toml") {
        Ok(loaded) => loaded,
        Err(error) => panic!("{}", render(&error)),
    }
}

/// Asserts that a file is refused at a place, with words that its report holds, and a help.
#[track_caller]
fn refused(text: &str, place: &str, words: &[&str]) {
    let report = Folder::new(&[("policy.toml", text)]).refused("policy.toml");
    assert!(report.contains(&format!("policy.toml:{place}]")), "expected {place}:\n{report}");
    assert!(report.contains("help: "), "{report}");
    assert!(report.contains("╰── "), "{report}");
    for words in words {
        assert!(report.contains(words), "expected {words:?}:\n{report}");
    }
}

#[test]
fn a_minimal_file_says_nothing_but_its_version() {
    let Loaded { layer, rest } = loaded("version = 1\n");
    assert_eq!(layer, Layer::default());
    assert_eq!(rest, Rest::default());
}

#[test]
fn every_part_of_a_file_arrives() {
    let text = include_str!("../../../../examples/policies/full.toml");
    let folder = Folder::new(&[("policy.toml", text), ("internal.toml", "")]);
    let Loaded { layer, rest } = folder.load("policy.toml").unwrap();
    assert_eq!(layer.files.workspace.as_ref().unwrap().host, folder.0.path().canonicalize().unwrap());
    assert_eq!(layer.profile, Some(Profile::Internal));
    assert_eq!(layer.limits.disk_bytes, Some(512 << 20));
    assert_eq!(layer.environment.set[0].to_c_string().to_bytes(), b"LANG=C.UTF-8");
    assert_eq!(layer.environment.passed[0].to_c_string().to_bytes(), b"TZ=Europe/Berlin");
    let protocols: Vec<_> = layer.network.iter().map(|rule| (rule.protocol, rule.ports.clone())).collect();
    assert_eq!(
        protocols,
        [
            (Protocol::Https, vec![443]),
            (Protocol::Https, vec![443]),
            (Protocol::Http, vec![80]),
            (Protocol::Tcp, vec![5432]),
            (Protocol::TlsPassthrough, vec![443]),
        ]
    );
    assert_eq!(layer.network[0].credential.as_deref(), Some("gh"));
    assert_eq!(layer.credentials.len(), 2);
    assert_eq!(layer.limits.bytes_out, Some(100 << 20));
    assert_eq!(layer.limits.hosts, Some(200));
    assert_eq!(rest.record_requests, Some(true));
    let policy = Policy::resolve(&[layer], &Ceiling::default()).unwrap();
    assert_eq!(policy.limits.output_bytes, Some(1 << 30));
}

#[test]
fn the_report_shows_the_line_and_points_at_the_key() {
    let folder = Folder::new(&[("policy.toml", "version = 1\n\n[limits]\nmemroy = \"1GiB\"\n")]);
    let report = folder.refused("policy.toml").replace(&folder.0.path().display().to_string(), "");
    let expected = "  × unknown key `memroy`
   ╭─[/policy.toml:4:1]
 3 │ [limits]
 4 │ memroy = \"1GiB\"
   · ───┬──
   ·    ╰── not a key of this table
   ╰────
  help: did you mean `memory`?
";
    assert_eq!(report, expected);
}

#[test]
fn an_unknown_key_is_refused_with_its_place() {
    refused(
        "version = 1\nprofil = \"internal\"\n",
        "2:1",
        &["unknown key `profil`", "did you mean `profile`?"],
    );
    refused(
        "version = 1\n[network]\nallowed = []\n",
        "3:1",
        &["unknown key `allowed`", "did you mean `allow`?"],
    );
    refused(
        "version = 1\n[[network.allow]]\nhost = \"a.test\"\nmethod = [\"GET\"]\n",
        "4:1",
        &["unknown key `method`", "did you mean `methods`?"],
    );
    refused("version = 1\n[dns]\ncolour = 1\n", "3:1", &["the only key of this table is denied"]);
    refused(
        "version = 1\n[audit]\n[limits]\ncolour = 1\n",
        "4:1",
        &["the keys of this table are timeout, grace"],
    );
    refused("version = 1\n[network]\ndeny = []\n", "3:1", &["unknown key `deny`"]);
}

#[test]
fn a_duplicate_key_is_refused_at_the_second() {
    refused("version = 1\n[limits]\npids = 1\npids = 2\n", "4:1", &["there twice"]);
    refused("version = 1\n[limits]\n[limits]\n", "3:2", &["there twice"]);
    refused("version = 1\n[environment]\nset = { A = \"1\", A = \"2\" }\n", "3:18", &["there twice"]);
    refused("version = 1\nversion = 1\n", "2:1", &["there twice"]);
}

#[test]
fn another_version_is_refused_before_its_keys_are_judged() {
    refused("version = 2\nnovelty = true\n", "1:11", &["version 2 of policy files is not known here"]);
    refused("version = \"1\"\n", "1:11", &["without the quotes"]);
    refused("version = 1.0\n", "1:11", &["1.0"]);
    refused("profile = \"internal\"\n", "1:1", &["begin the file with `version = 1`"]);
    let empty = Folder::new(&[("policy.toml", "")]).refused("policy.toml");
    assert!(empty.contains("policy.toml:1:1]") && empty.contains("`version = 1`"), "{empty}");
}

#[test]
fn what_is_not_toml_is_refused_where_it_stops_being_toml() {
    refused("version = 1\n[limits", "2:7", &["this is not TOML", "unclosed"]);
    refused("version = 1 profile = 2\n", "1:21", &["this is not TOML"]);
    refused("version = 1\nprofile =\n", "2:9", &["this is not TOML"]);
    refused("version = 1\nx = [\n\n", "2:5", &["this is not TOML"]);
}

#[test]
fn nesting_without_end_is_an_error_and_not_a_crash() {
    let deep = format!("version = 1\nx = {}{}\n", "[".repeat(100_000), "]".repeat(100_000));
    let error = Folder::new(&[("policy.toml", &deep)]).load("policy.toml").unwrap_err();
    assert!(error.summary().contains("recurs"), "{}", error.summary());
}

#[test]
fn a_value_of_the_wrong_kind_is_refused_with_what_belongs_there() {
    let limits = |line: &str| format!("version = 1\n[limits]\n{line}\n");
    refused(&limits("timeout = 5"), "3:11", &["`5` has no unit", "write `5s` for seconds"]);
    refused(&limits("timeout = \"-5m\""), "3:11", &["`-5m` is negative"]);
    refused(&limits("timeout = \"5M\""), "3:11", &["is not a duration"]);
    refused(&limits("memory = 1024"), "3:10", &["`1024` has no unit", "`1024B`"]);
    refused(&limits("memory = \"1G\""), "3:10", &["is not a size", "write `1GiB`"]);
    refused(&limits("memory = true"), "3:10", &["`true` is not a size"]);
    refused(&limits("pids = \"many\""), "3:8", &["is not a whole number"]);
    refused(&limits("pids = 256.0"), "3:8", &["`256.0` is not a whole number"]);
    refused(&limits("pids = 4294967296"), "3:8", &["too large"]);
    refused(&limits("files = 99999999999999999999"), "3:9", &["a whole number"]);
    refused(&limits("cpus = nan"), "3:8", &["is not a share of cores"]);
    refused(&limits("cpus = \"1\""), "3:8", &["write 1 without the quotes"]);
    refused("version = 1\nlimits = 3\n", "2:10", &["a table"]);
    refused(
        "version = 1\nprofile = \"trusted\"\n",
        "2:11",
        &["is not a profile", "did you mean `untrusted`?"],
    );
    refused("version = 1\nbackend = \"docker\"\n", "2:11", &["is not a backend", "auto, container"]);
    refused("version = 1\nrequire = [\"cpu\", \"kernel\"]\n", "2:19", &["is not a capability"]);
    refused("version = 1\naccept_gaps = \"cpu\"\n", "2:15", &["is not a list", "write a list here"]);
    refused("version = 1\nextends = 1\n", "2:11", &["a string"]);
}

#[test]
fn nothing_that_could_run_for_no_time_or_in_no_memory_is_accepted() {
    for line in ["timeout = \"0s\"", "memory = \"0B\"", "pids = 0"] {
        let column = line.find('=').unwrap() + 3;
        refused(&format!("version = 1\n[limits]\n{line}\n"), &format!("3:{column}"), &["zero"]);
    }
}

#[test]
fn an_odd_boolean_is_refused() {
    let private =
        |value: &str| format!("version = 1\n[[network.allow]]\nhost = \"a.test\"\nprivate = {value}\n");
    for value in ["\"yes\"", "1", "\"true\""] {
        refused(&private(value), "4:11", &["a boolean"]);
    }
    refused(&private("True"), "4:11", &["this is not TOML"]);
}

/// A file with one rule, whose lines begin in line 3.
fn one_rule(lines: &str) -> String {
    format!("version = 1\n[[network.allow]]\n{lines}\n")
}

#[test]
fn a_host_that_means_too_much_or_nothing_is_refused() {
    for (host, words) in [
        ("*", "too broad"),
        ("*.com", "too broad"),
        ("https://api.test/x", "write `api.test` alone"),
        ("https://*", "is not a host name"),
        ("api.test:443", "write `api.test` alone"),
        ("0.0.0.0/0", "is not a host name"),
        ("10.0.0.0/8", "is not a host name"),
        ("::/0", "is not a host name"),
        ("", "is not a host name"),
        ("a b.test", "is not a host name"),
        ("a.*.test", "is not a host name"),
    ] {
        refused(&one_rule(&format!("host = \"{host}\"")), "3:8", &[words]);
    }
    refused(
        "version = 1\n[[network.allow]]\nname = \"x\"\n",
        "2:1",
        &["`host` is missing", "add the key `host`"],
    );
}

#[test]
fn a_port_out_of_range_is_refused() {
    for port in ["0", "65536", "-1", "443.0", "\"443\"", "99999999999999999999"] {
        refused(&one_rule(&format!("host = \"a.test\"\nports = [80, {port}]")), "4:14", &["port"]);
    }
    refused(&one_rule("host = \"a.test\"\nports = []"), "4:9", &["allows nothing"]);
    refused(&one_rule("host = \"a.test\"\nprotocol = \"tcp\""), "3:8", &["needs its ports"]);
}

#[test]
fn methods_and_paths_are_judged_or_refused() {
    refused(&one_rule("host = \"a.test\"\nmethods = [\"GET\", \"post\"]"), "4:19", &["write `POST`"]);
    refused(&one_rule("host = \"a.test\"\nmethods = [\"*\"]"), "4:12", &["leave `methods` out"]);
    refused(&one_rule("host = \"a.test\"\nmethods = []"), "4:11", &["allows nothing"]);
    refused(
        &one_rule("host = \"a.test\"\npaths = [\"repos\"]"),
        "4:10",
        &["does not start with `/`", "`/repos`"],
    );
    refused(&one_rule("host = \"a.test\"\npaths = [\"/a?b=c\"]"), "4:10", &["more than a path"]);
    refused(
        &one_rule("host = \"a.test\"\nprotocol = \"tcp\"\nports = [1]\npaths = [\"/\"]"),
        "6:9",
        &["can't be judged"],
    );
    refused(
        &one_rule("host = \"a.test\"\ntls = \"passthrough\"\nmethods = [\"GET\"]"),
        "5:11",
        &["can't be judged"],
    );
}

#[test]
fn tls_that_is_not_there_cannot_be_passed_through() {
    let rule = one_rule("host = \"a.test\"\nports = [1]\nprotocol = \"tcp\"\ntls = \"passthrough\"");
    refused(&rule, "6:7", &["only TLS can be passed through", "the protocol"]);
    refused(&one_rule("host = \"a.test\"\ntls = \"off\""), "4:7", &["write one of passthrough"]);
    refused(&one_rule("host = \"a.test\"\nprotocol = \"udp\""), "4:12", &["is not a protocol"]);
}

#[test]
fn the_machines_own_services_are_named_exactly() {
    refused(&one_rule("host = \"host.cofferdam.internal\"\nprivate = true"), "3:8", &["and a port"]);
    refused(&one_rule("host = \"host.cofferdam.internal\"\nports = [8080]"), "3:8", &["need `private`"]);
    loaded(&one_rule("host = \"host.cofferdam.internal\"\nports = [8080]\nprivate = true"));
}

const GH: &str = "[[credential]]\nname = \"gh\"\nissuer = \"github-app.acme\"\n";

#[test]
fn rules_and_credentials_must_know_each_other() {
    refused(&one_rule("host = \"a.test\"\ncredential = \"gh\""), "4:14", &["no credential is called `gh`"]);
    refused(&format!("version = 1\n{GH}"), "3:8", &["no rule uses the credential `gh`"]);
    refused(&format!("{}{GH}", one_rule("host = \"a.test\"")), "5:8", &["no rule uses the credential `gh`"]);
    let delivered = format!("{GH}deliver = {{ PGPASSWORD = \"{{password}}\" }}\n");
    refused(&format!("version = 1\n{delivered}"), "3:8", &["no rule uses"]);
    loaded(&format!("{}{delivered}", one_rule("host = \"a.test\"")));
}

#[test]
fn a_credential_goes_to_one_host_whose_requests_are_read() {
    refused(
        &format!("{}{GH}", one_rule("host = \"*.a.test\"\ncredential = \"gh\"")),
        "3:8",
        &["to a wildcard"],
    );
    let rule = one_rule("host = \"a.test\"\ncredential = \"gh\"\ntls = \"passthrough\"");
    refused(&format!("{rule}{GH}"), "5:7", &["TLS that isn't opened", "this credential"]);
    let rule = one_rule("host = \"a.test\"\ncredential = \"gh\"\nports = [1]\nprotocol = \"tcp\"");
    refused(&format!("{rule}{GH}inject = \"bearer\"\n"), "6:12", &["bytes that aren't HTTP"]);
}

#[test]
fn a_credential_does_not_outlive_the_run() {
    let rule = one_rule("host = \"a.test\"\ncredential = \"gh\"");
    refused(&format!("{rule}{GH}ttl = \"6m\"\n"), "8:7", &["longer than the timeout", "write at most `5m`"]);
    refused(&format!("{rule}{GH}ttl = \"2m\"\n[limits]\ntimeout = \"1m\"\n"), "8:7", &["write at most `1m`"]);
    refused(&format!("{rule}{GH}ttl = \"-2m\"\n"), "8:7", &["negative"]);
    refused(&format!("{rule}{GH}ttl = \"0s\"\n"), "8:7", &["zero"]);
    refused(&format!("{rule}{GH}max_uses = 0\n"), "8:12", &["zero"]);
    loaded(&format!("{rule}{GH}ttl = \"5m\"\n"));
}

#[test]
fn a_name_is_there_once() {
    let two = "[[network.allow]]\nname = \"a\"\nhost = \"a.test\"\n".repeat(2);
    refused(&format!("version = 1\n{two}"), "6:8", &["`a` is there twice", "the first one"]);
    let rule = one_rule("host = \"a.test\"\ncredential = \"gh\"");
    refused(&format!("{rule}{GH}{GH}"), "9:8", &["`gh` is there twice"]);
    refused("version = 1\naccept_gaps = [\"cpu\", \"cpu\"]\n", "2:23", &["`cpu` is there twice"]);
    refused("version = 1\nrequire = [\"cpu\", \"cpu\"]\n", "2:19", &["`cpu` is there twice"]);
    refused("version = 1\n[environment]\npass = [\"TZ\", \"TZ\"]\n", "3:15", &["`TZ` is there twice"]);
    let surrogate = format!("{rule}{GH}surrogate_env = \"T\"\n[environment]\nset = {{ T = \"x\" }}\n");
    refused(&surrogate, "8:17", &["`T` is there twice"]);
}

#[test]
fn a_gap_cannot_be_accepted_and_its_capability_required() {
    refused(
        "version = 1\naccept_gaps = [\"cpu\"]\nrequire = [\"cpu\"]\n",
        "3:12",
        &["both required and accepted", "accepted as a gap"],
    );
}

#[test]
fn a_variable_that_no_environment_holds_is_refused() {
    refused("version = 1\n[environment]\npass = [\"*\"]\n", "3:9", &["is a pattern"]);
    refused("version = 1\n[environment]\npass = [\"A=B\"]\n", "3:9", &["can't be empty or hold `=`"]);
    refused("version = 1\n[environment]\nset = { \"\" = \"x\" }\n", "3:9", &["can't be empty"]);
    refused("version = 1\n[environment]\nset = { A = \"\\u0000\" }\n", "3:13", &["NUL"]);
    refused("version = 1\n[environment]\nset = { A = 1 }\n", "3:13", &["`1` is not a variable's value"]);
    refused("version = 1\n[environment]\nset = [\"A=1\"]\n", "3:7", &["a list is not a table"]);
}

#[test]
fn a_variable_that_the_host_does_not_have_is_not_passed() {
    let layer = loaded("version = 1\n[environment]\npass = [\"NOWHERE\", \"TZ\"]\n").layer;
    let names: Vec<_> = layer.environment.passed.iter().map(Variable::name).collect();
    assert_eq!(names, ["TZ"]);
}

#[test]
fn the_files_of_a_policy_are_looked_up_beside_it() {
    let text = "version = 1\n[files]\nworkspace = \"w\"\nhide = [\"*.key\"]\nkeep = [\".envrc\"]\n\
                inputs = [{ host = \"d.csv\" }, { host = \"w\", guest = \"/opt/w\" }]\n";
    let folder = Folder::new(&[("policy.toml", text), ("d.csv", "1")]);
    fs::create_dir(folder.path("w")).unwrap();
    let real = folder.0.path().canonicalize().unwrap();
    let files = folder.load("policy.toml").unwrap().layer.files;
    assert_eq!(files.workspace.unwrap().host, real.join("w"));
    let shown: Vec<_> = files.shown.iter().map(|one| (one.host.clone(), one.guest.as_path())).collect();
    let expected = [(real.join("d.csv"), Path::new("/inputs/d.csv")), (real.join("w"), Path::new("/opt/w"))];
    assert_eq!(shown, expected);
    assert_eq!((files.hide[0].as_str(), files.keep[0].as_str()), ("*.key", ".envrc"));
}

#[test]
fn a_file_that_cannot_be_shown_is_refused_with_its_place() {
    for (line, column, words) in [
        ("workspace = \"none\"", 13, "there is no"),
        ("workspace = \"\"", 13, "empty"),
        ("workspace = \"policy.toml\"", 13, "not a folder"),
        ("workspace = \"/\"", 13, "machine itself"),
        ("hide = [\"**/.env*\", \"/etc\"]", 21, "no pattern"),
        ("keep = [\"a\", \"a\"]", 14, "there twice"),
        ("inputs = [{ host = \"none\" }]", 20, "there is no"),
        ("inputs = [{ host = \".\", guest = \"/etc\" }]", 33, "belongs to the sandbox"),
        ("inputs = [{ host = \".\", guest = \"x\" }]", 33, "absolute"),
        (
            "inputs = [{ host = \".\", guest = \"/x\" }, { host = \"policy.toml\", guest = \"/x/y\" }]",
            73,
            "within",
        ),
        ("inputs = [{ guest = \"/x\" }]", 11, "`host` is missing"),
        ("copy = true", 1, "unknown key `copy`"),
    ] {
        refused(&format!("version = 1\n[files]\n{line}\n"), &format!("3:{column}"), &[words]);
    }
    loaded("version = 1\n[files]\nhide = []\ninputs = []\nkeep = []\n");
}

#[test]
fn extending_a_file_shows_and_lets_out_no_more_than_it() {
    let base =
        "[files]\nworkspace = \".\"\ninputs = [{ host = \"base.toml\" }]\nkeep = [\"a\"]\nhide = [\"x\"]\n";
    for (top, place) in [
        ("[files]\nworkspace = \"..\"\n", "4:13"),
        ("[files]\ninputs = [{ host = \"base.toml\" }, { host = \"top.toml\" }]\n", "4:44"),
        ("[files]\nkeep = [\"a\", \"b\"]\n", "4:14"),
    ] {
        wider(base, top, place, &["files."]);
    }
    let text = format!("version = 1\n{base}");
    let top = "version = 1\nextends = \"base.toml\"\n[files]\nhide = [\"y\"]\n";
    let empty = "version = 1\nextends = \"base.toml\"\n[files]\ninputs = []\n";
    let folder = Folder::new(&[("base.toml", &text), ("top.toml", top), ("empty.toml", empty)]);
    let files = folder.load("top.toml").unwrap().layer.files;
    assert!(files.workspace.is_some() && files.keep.is_empty());
    assert_eq!((files.shown.len(), files.hide.len()), (1, 2));
    assert!(folder.load("empty.toml").unwrap().layer.files.shown.is_empty());
}

#[test]
fn nothing_in_a_file_reaches_the_terminal_as_a_command() {
    let hostile = "version = 1\n\"\\u001b[2J\" = 1 # \u{1b}[31m \u{202e}\r\n";
    let report = Folder::new(&[("policy.toml", hostile)]).refused("policy.toml");
    assert!(!report.contains(['\u{1b}', '\u{202e}', '\r']), "{report:?}");
    let hostile = "version = 1\n\"\\u001b[2J\" = 1\n";
    let report = Folder::new(&[("policy.toml", hostile)]).refused("policy.toml");
    assert!(report.contains("unknown key `?[2J`") && !report.contains('\u{1b}'), "{report:?}");
}

#[test]
fn a_file_with_windows_line_ends_or_a_byte_order_mark_is_read() {
    loaded("version = 1\r\nprofile = \"internal\"\r\n");
    loaded("\u{feff}version = 1\n");
    refused("version = 1\r\n[limits]\r\nmemroy = 1\r\n", "3:1", &["did you mean `memory`?"]);
}

#[test]
fn the_users_own_file_may_be_absent_but_not_unreadable() {
    let folder = Folder::new(&[("bad.toml", "version = 7\n"), ("good.toml", "version = 1\n")]);
    let users = |name: &str| load_users_policy(&folder.path(name), &host);
    assert!(users("none.toml").unwrap().is_none());
    assert!(users("good.toml").unwrap().is_some());
    assert!(users("bad.toml").is_err());
    assert!(load_users_policy(folder.0.path(), &host).is_err());
}

// Extending.

#[test]
fn a_file_takes_from_its_base_what_it_leaves_out() {
    let base = "version = 1\nprofile = \"internal\"\naccept_gaps = [\"cpu\"]\nrequire = [\"tty\"]\n\
                [limits]\nmemory = \"256MiB\"\nrequests = 10\n[[network.allow]]\nhost = \"a.test\"\n\
                [environment]\npass = [\"TZ\", \"TOKEN\"]\nset = { A = \"1\", B = \"1\" }\n";
    let top =
        "version = 1\nextends = \"base.toml\"\n[limits]\npids = 8\n[environment]\nset = { B = \"2\" }\n";
    let folder = Folder::new(&[("base.toml", base), ("top.toml", top)]);
    let Loaded { layer, .. } = folder.load("top.toml").unwrap();
    assert_eq!(layer.profile, Some(Profile::Internal));
    assert_eq!((layer.limits.memory_bytes, layer.limits.pids), (Some(256 << 20), Some(8)));
    assert_eq!(layer.network.len(), 1);
    assert_eq!(layer.environment.passed.len(), 2);
    assert_eq!(layer.environment.set.len(), 2);
    assert!(layer.require.contains(&Capability::Tty));
    assert!(layer.accept_gaps.is_empty(), "a gap is accepted by name or not at all");
    assert_eq!(layer.limits.requests, Some(10));
}

#[test]
fn an_empty_list_means_none_and_not_the_bases() {
    let base =
        format!("{}{GH}[environment]\npass = [\"TZ\"]\n", one_rule("host = \"a.test\"\ncredential = \"gh\""));
    let top =
        "version = 1\nextends = \"base.toml\"\n[network]\nallow = []\n[environment]\npass = [\"NOWHERE\"]\n";
    let base = base.replace("[\"TZ\"]", "[\"TZ\", \"NOWHERE\"]");
    let folder = Folder::new(&[("base.toml", &base), ("top.toml", top)]);
    let Loaded { layer, rest } = folder.load("top.toml").unwrap();
    assert_eq!(layer.network, []);
    assert_eq!(layer.environment.passed, []);
    assert_eq!(layer.credentials, [], "no rule is left that uses it");
    assert_eq!(rest.credentials, []);
}

/// Asserts that `top` can't extend `base`, and where.
#[track_caller]
fn wider(base: &str, top: &str, place: &str, words: &[&str]) {
    let base = format!("version = 1\n{base}\n");
    let top = format!("version = 1\nextends = \"base.toml\"\n{top}\n");
    let report = Folder::new(&[("base.toml", &base), ("top.toml", &top)]).refused("top.toml");
    assert!(report.contains(&format!("top.toml:{place}]")), "expected {place}:\n{report}");
    assert!(report.contains("wider than `base.toml`"), "{report}");
    for words in words {
        assert!(report.contains(words), "expected {words:?}:\n{report}");
    }
}

#[test]
fn extending_a_file_cannot_grant_more_than_it_grants() {
    wider(
        "[limits]\nmemory = \"64MiB\"",
        "[limits]\nmemory = \"65MiB\"",
        "4:10",
        &["limits.memory is wider"],
    );
    wider("profile = \"compute\"", "profile = \"internal\"", "3:11", &["`compute` there"]);
    wider("backend = \"wasm\"", "backend = \"container\"", "3:11", &["`wasm` there"]);
    wider("backend = \"wasm\"", "backend = \"auto\"", "3:11", &["`wasm` there"]);
    wider("", "accept_gaps = [\"cpu\"]", "3:16", &["`cpu` is not accepted there"]);
    wider("accept_gaps = [\"cpu\"]", "accept_gaps = [\"cpu\", \"tty\"]", "3:23", &["`tty`"]);
    wider("", "[environment]\npass = [\"NOWHERE\", \"TZ\"]", "4:20", &["`TZ` is not passed there"]);
    wider("", "[[network.allow]]\nhost = \"a.test\"", "4:8", &["no rule there allows a.test"]);
    let rule = "[[network.allow]]\nhost = \"a.test\"\nmethods = [\"GET\"]";
    wider(rule, "[[network.allow]]\nhost = \"a.test\"", "4:8", &["no rule there allows"]);
    wider("[audit]\nrequests = true", "[audit]\nrequests = false", "4:12", &["recorded there"]);
    wider("[limits]\nhosts = 1", "[limits]\nhosts = 2", "4:9", &["limits.hosts is wider", "2 against 1"]);
    wider("[limits]\nbytes_out = \"1B\"", "[limits]\nbytes_out = \"2B\"", "4:13", &["limits.bytes_out"]);
}

#[test]
fn what_the_base_leaves_out_is_granted_as_the_default_and_not_without_bound() {
    wider("", "profile = \"internal\"", "3:11", &["`untrusted` there"]);
    wider("", "backend = \"gvisor\"", "3:11", &["profile `untrusted` doesn't choose `gvisor`"]);
    for (line, column) in [
        ("memory = \"2GiB\"", 10),
        ("timeout = \"6m\"", 11),
        ("grace = \"1s\"", 9),
        ("cpus = 1.5", 8),
        ("pids = 257", 8),
        ("disk = \"513MiB\"", 8),
        ("files = 100001", 9),
    ] {
        wider("", &format!("[limits]\n{line}"), &format!("4:{column}"), &["limits."]);
    }
    wider("[limits]\nmemory = \"64MiB\"", "[limits]\ndisk = \"33MiB\"", "4:8", &["limits.disk"]);
}

#[test]
fn a_credential_is_repeated_as_it_is_or_with_less() {
    let rule = "[[network.allow]]\nhost = \"a.test\"\ncredential = \"gh\"\n";
    let base = format!("{rule}{GH}ttl = \"4m\"\nmax_uses = 5\nscope = {{ r = [\"shop\"] }}\n");
    let scope = "scope = { r = [\"shop\"] }\n";
    wider(&base, &format!("{GH}ttl = \"5m\"\nmax_uses = 5\n{scope}"), "4:8", &["not granted there"]);
    wider(&base, &format!("{GH}max_uses = 5\n{scope}"), "4:8", &["not granted there"]);
    wider(&base, &format!("{GH}ttl = \"4m\"\nmax_uses = 6\n{scope}"), "7:12", &["less often"]);
    wider(&base, &format!("{GH}ttl = \"4m\"\n{scope}"), "4:8", &["less often"]);
    wider(&base, &format!("{GH}ttl = \"4m\"\nmax_uses = 5\n"), "4:8", &["another one there"]);
    let text = format!("version = 1\nextends = \"base.toml\"\n{GH}ttl = \"1m\"\nmax_uses = 1\n{scope}");
    let base = format!("version = 1\n{base}");
    Folder::new(&[("base.toml", &base), ("top.toml", &text)]).load("top.toml").unwrap();
    let shorter = "version = 1\nextends = \"base.toml\"\n[limits]\ntimeout = \"10s\"\n";
    let loaded = Folder::new(&[("base.toml", &base), ("top.toml", shorter)]).load("top.toml").unwrap();
    assert_eq!(loaded.layer.credentials[0].ttl, Some(std::time::Duration::from_secs(10)));
}

#[test]
fn a_rule_of_the_base_keeps_its_credential() {
    let rules = "[[network.allow]]\nhost = \"a.test\"\ncredential = \"gh\"\n\
                 [[network.allow]]\nhost = \"b.test\"\ncredential = \"hub\"\n";
    let base = format!("version = 1\n{rules}{GH}{}", GH.replace("\"gh\"", "\"hub\""));
    let top = format!("version = 1\nextends = \"base.toml\"\n{GH}");
    let report = Folder::new(&[("base.toml", &base), ("top.toml", &top)]).refused("top.toml");
    assert!(report.contains("top.toml:2:11]") && report.contains("needs the credential `hub`"), "{report}");
}

#[test]
fn extending_leads_to_an_end() {
    let extend = |name: &str| format!("version = 1\nextends = \"{name}\"\n");
    let itself = Folder::new(&[("a.toml", &extend("a.toml"))]);
    assert!(itself.refused("a.toml").contains("a.toml:2:11]"));
    let circle = Folder::new(&[("a.toml", &extend("b.toml")), ("b.toml", &extend("./a.toml"))]);
    let report = circle.refused("a.toml");
    assert!(report.contains("b.toml:2:11]") && report.contains("extends itself"), "{report}");
    std::os::unix::fs::symlink("a.toml", circle.path("c.toml")).unwrap();
    fs::write(circle.path("b.toml"), extend("c.toml")).unwrap();
    assert!(circle.refused("a.toml").contains("extends itself"));

    let chain: Vec<_> =
        (0..10).map(|at| (format!("{at}.toml"), extend(&format!("{}.toml", at + 1)))).collect();
    let chain: Vec<_> = chain.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let chain = Folder::new(&chain);
    fs::write(chain.path("9.toml"), "version = 1\n").unwrap();
    assert!(chain.refused("0.toml").contains("more than 8 files"));
    chain.load("1.toml").unwrap();
}

#[test]
fn a_base_is_found_beside_its_file_and_its_own_errors_are_in_it() {
    let folder = Folder::new(&[("top.toml", "version = 1\nextends = \"team/base.toml\"\n")]);
    let report = folder.refused("top.toml");
    assert!(report.contains("top.toml:2:11]") && report.contains("No such file"), "{report}");
    fs::create_dir(folder.path("team")).unwrap();
    fs::write(folder.path("team/base.toml"), "version = 1\nx = 1\n").unwrap();
    assert!(folder.refused("top.toml").contains("team/base.toml:2:1]"));
    fs::write(folder.path("team/base.toml"), "version = 1\n").unwrap();
    folder.load("top.toml").unwrap();
    refused("version = 1\nextends = \"\"\n", "2:11", &["names no file"]);
    refused("version = 1\nextends = \"/\"\n", "2:11", &["is a directory"]);
}

/// Numbers that look random and are the same in each run (xorshift, Marsaglia 2003).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn maybe(&mut self, line: impl FnOnce(&mut Self) -> String) -> String {
        if self.roll(2) == 0 { line(self) } else { String::new() }
    }

    /// Some policy, with values around the defaults, so that some are wider and some are not.
    fn policy(&mut self, head: &str) -> String {
        let mut text = format!("version = 1\n{head}");
        text += &self.maybe(|dice| format!("profile = \"{}\"\n", Profile::ALL[dice.roll(4) as usize]));
        text += &self.maybe(|dice| format!("backend = \"{}\"\n", BackendName::ALL[dice.roll(6) as usize]));
        text += &self.maybe(|_| "accept_gaps = [\"cpu\"]\n".into());
        text += "[limits]\n";
        text += &self.maybe(|dice| format!("timeout = \"{}s\"\n", 298 + dice.roll(4)));
        text += &self.maybe(|dice| format!("grace = \"{}s\"\n", dice.roll(2)));
        text += &self.maybe(|dice| format!("memory = \"{}MiB\"\n", 1022 + dice.roll(4)));
        text += &self.maybe(|dice| format!("cpus = 0.{}\n", 8 + dice.roll(2)));
        text += &self.maybe(|dice| format!("pids = {}\n", 254 + dice.roll(4)));
        text += &self.maybe(|dice| format!("disk = \"{}MiB\"\n", 509 + dice.roll(4)));
        text += &self.maybe(|dice| format!("files = {}\n", 99_999 + dice.roll(3)));
        text += &self.maybe(|dice| format!("output = \"{}B\"\n", 1 + dice.roll(2)));
        text += "[files]\n";
        text += &self.maybe(|_| "workspace = \".\"\n".into());
        text += &self.maybe(|_| "inputs = [{ host = \"base.toml\" }]\n".into());
        text += &self.maybe(|_| "hide = [\"secret\"]\n".into());
        text += &self.maybe(|_| "keep = [\".envrc\"]\n".into());
        text += &self.maybe(|_| "[environment]\npass = [\"TZ\"]\n".into());
        text += &self.maybe(|_| "[[network.allow]]\nhost = \"*.a.test\"\n".into());
        text += &self.maybe(|_| "[[network.allow]]\nhost = \"x.a.test\"\nmethods = [\"GET\"]\n".into());
        text
    }
}

#[test]
fn whatever_extends_whatever_nothing_is_wider_than_its_base() {
    let mut dice = Dice(0x5eed);
    let (mut accepted, mut refused) = (0, 0);
    let folder = Folder::new(&[]);
    for _ in 0..2000 {
        fs::write(folder.path("base.toml"), dice.policy("")).unwrap();
        fs::write(folder.path("top.toml"), dice.policy("extends = \"base.toml\"\n")).unwrap();
        let resolve = |name: &str| {
            let layer = folder.load(name).map(|loaded| loaded.layer);
            layer.map(|layer| Policy::resolve(&[layer], &Ceiling::default()).unwrap())
        };
        let base = resolve("base.toml").unwrap();
        match resolve("top.toml") {
            Ok(top) => {
                accepted += 1;
                assert_within(&top, &base, folder.0.path());
            }
            Err(_) => refused += 1,
        }
    }
    assert!(accepted > 20 && refused > 20, "{accepted} accepted, {refused} refused");
}

#[test]
fn no_slip_in_a_file_is_more_than_an_error_with_a_help() {
    let whole: Vec<char> = include_str!("../../../../examples/policies/full.toml").chars().collect();
    let odd = [
        '\u{0}', '\u{1b}', '\r', '\n', '\t', '"', '\'', '[', ']', '{', '=', '#', '.', '-', '*', 'é', '€',
        '😀',
    ];
    let mut dice = Dice(0xd1ce);
    let folder = Folder::new(&[("internal.toml", "")]);
    let mut refused = 0;
    for _ in 0..1500 {
        let mut text = whole.clone();
        for _ in 0..=dice.roll(2) {
            let at = dice.roll(text.len() as u64) as usize;
            match dice.roll(4) {
                0 => drop(text.remove(at)),
                1 => text[at] = odd[dice.roll(odd.len() as u64) as usize],
                2 => text.insert(at, odd[dice.roll(odd.len() as u64) as usize]),
                _ => text.truncate(at),
            }
            text.push(' ');
        }
        let text: String = text.into_iter().collect();
        let source = Source::new("policy.toml", &text);
        let read = PolicyFile::parse(&text, &source).and_then(|file| {
            let loaded = check::alone(&file, &source, folder.0.path(), &host)?.loaded;
            check::references(&file, &loaded, &source)
        });
        if let Err(error) = read {
            refused += 1;
            assert!(!error.fix().is_empty());
            assert!(error.summary().starts_with("policy.toml:"), "{}", error.summary());
            assert!(!render(&error).contains(['\u{0}', '\u{1b}', '\r']));
        }
    }
    assert!(refused > 500, "{refused} refused");
}

#[track_caller]
fn assert_within(top: &Policy, base: &Policy, folder: &Path) {
    let (mine, theirs) = (&top.limits, &base.limits);
    let texts =
        || ["base.toml", "top.toml"].map(|name| fs::read_to_string(folder.join(name)).unwrap()).join("\n");
    let output = |bytes: Option<u64>| bytes.unwrap_or(u64::MAX);
    let within = mine.timeout <= theirs.timeout
        && mine.grace <= theirs.grace
        && mine.memory_bytes <= theirs.memory_bytes
        && mine.cpus <= theirs.cpus
        && mine.pids <= theirs.pids
        && mine.disk_bytes() <= theirs.disk_bytes()
        && mine.files <= theirs.files
        && output(mine.output_bytes) <= output(theirs.output_bytes)
        && top.profile == base.profile
        && (top.files.workspace.is_none() || top.files.workspace == base.files.workspace)
        && top.files.shown.iter().all(|shown| base.files.shown.contains(shown))
        && top.files.keep.iter().all(|pattern| base.files.keep.contains(pattern))
        && base.files.hide.iter().all(|pattern| top.files.hide.contains(pattern))
        && top.accept_gaps.is_subset(&base.accept_gaps)
        && top.require.is_superset(&base.require)
        && top.network.iter().all(|rule| base.network.iter().any(|outer| rule.within(outer)))
        && top.environment.passed.iter().all(|variable| base.environment.passed.contains(variable));
    assert!(within, "{}", texts());
}
