//! What is read of pip's and npm's configurations.

use super::*;

/// What a machine has that is made of words: variables, files, and where hosts are.
fn found(preset: &str, variables: &[(&str, &str)], files: &[(&str, &str)]) -> Result<Found, BadValue> {
    let variables = variables.iter().copied().chain([("HOME", "/home/me")]).collect::<Vec<_>>();
    let variable = |name: &str| variables.iter().find(|it| it.0 == name).map(|it| OsString::from(it.1));
    let text = |path: &Path| files.iter().find(|it| Path::new(it.0) == path).map(|it| it.1.to_owned());
    let addresses = |host: &Host| match host {
        Host::Name(name) if name.as_str().ends_with(".corp.test") => vec!["10.0.0.7".parse().unwrap()],
        _ => vec!["203.0.113.7".parse().unwrap()],
    };
    let machine = Machine { variable: &variable, text: &text, addresses: &addresses };
    let Ok(cofferdam_core::policy::AllowFlag::Preset(preset)) = NetworkRule::parse_flag(preset) else {
        panic!("{preset} is no preset")
    };
    resolve(&preset, &machine)
}

fn flags(found: &Found) -> Vec<String> {
    found.rules.iter().flat_map(NetworkRule::flags).collect()
}

fn set(found: &Found) -> Vec<String> {
    found.variables.iter().map(|variable| variable.to_c_string().into_string().unwrap()).collect()
}

#[test]
fn pips_index_is_read_where_pip_reads_it_and_its_user_information_stays_outside() {
    let file = "# mine\n[global]\nindex-url = https://me:secret@mirror.corp.test:8443/simple/\n\
                extra-index-url =\n    https://a.test/simple\n    http://b.test/simple\ncert = /etc/corp.pem\n";
    let files = [("/home/me/.config/pip/pip.conf", file), ("/etc/corp.pem", "PEM")];
    let found = found("pypi", &[], &files).unwrap();
    assert_eq!(
        flags(&found),
        ["GET,HEAD mirror.corp.test:8443,private", "GET,HEAD a.test", "GET,HEAD http://b.test"]
    );
    assert_eq!(
        set(&found),
        [
            "PIP_INDEX_URL=https://mirror.corp.test:8443/simple/",
            "PIP_EXTRA_INDEX_URL=https://a.test/simple http://b.test/simple"
        ]
    );
    assert_eq!(found.roots, [Path::new("/etc/corp.pem")]);
    let names: Vec<_> = found.rules.iter().map(NetworkRule::label).collect();
    assert_eq!(names, ["pypi", "pypi-2", "pypi-3"]);
}

#[test]
fn a_stronger_file_section_or_variable_wins() {
    let files = [
        (
            "/etc/pip.conf",
            "[global]\nindex-url = https://system.test/\n[install]\nindex-url = https://install.test/\n",
        ),
        ("/home/me/.config/pip/pip.conf", "[global]\nindex-url = https://mine.test/\n"),
    ];
    assert_eq!(flags(&found("pypi", &[], &files).unwrap()), ["GET,HEAD install.test"]);
    assert_eq!(flags(&found("pypi", &[], &files[1..]).unwrap()), ["GET,HEAD mine.test"]);
    let variable = [("PIP_INDEX_URL", "https://variable.test/simple")];
    assert_eq!(flags(&found("pypi", &variable, &files).unwrap()), ["GET,HEAD variable.test"]);
}

#[test]
fn without_a_configuration_it_is_the_index_that_pip_has_built_in() {
    let module = "class PackageIndex:\n    pass\n\n\nPyPI = PackageIndex(\"https://index.test/\", \
                  file_storage_domain=\"files.test\")\nTestPyPI = PackageIndex(\n    \"https://other.test/\")\n";
    let debian = ("/usr/lib/python3/dist-packages/pip/_internal/models/index.py", module);
    let fedora = ("/usr/lib/python3.13/site-packages/pip/_internal/models/index.py", module);
    let both = ["GET,HEAD index.test", "GET,HEAD files.test"];
    for one in [debian, fedora] {
        let found = found("pypi", &[], &[one]).unwrap();
        assert_eq!(flags(&found), both);
        assert!(found.variables.is_empty(), "pip inside knows it");
    }
    let extra = [("PIP_EXTRA_INDEX_URL", "https://extra.test/simple")];
    let with_extra = flags(&found("pypi", &extra, &[debian]).unwrap());
    assert_eq!(with_extra, [&both[..], &["GET,HEAD extra.test"]].concat());
    let named = [("PIP_INDEX_URL", "https://named.test/simple")];
    assert_eq!(flags(&found("pypi", &named, &[debian]).unwrap()), ["GET,HEAD named.test"]);
    assert!(found("pypi", &[("PIP_NO_INDEX", "1")], &[debian]).is_err());
    let rewritten = [(debian.0, "PyPI = elsewhere()\n")];
    assert!(found("pypi", &[], &rewritten).is_err(), "a pip that says it in another way has none to be read");
}

#[test]
fn npms_registries_are_read_and_its_tokens_stay_outside() {
    let file = "registry=https://npm.corp.test/npm/\n@acme:registry=https://acme.test/\n\
                //npm.corp.test/npm/:_authToken=secret\ncafile=/etc/corp.pem\n";
    let found = found("npm", &[], &[("/home/me/.npmrc", file), ("/etc/corp.pem", "PEM")]).unwrap();
    assert_eq!(flags(&found), ["GET,HEAD npm.corp.test,private", "GET,HEAD acme.test"]);
    assert_eq!(
        set(&found),
        ["npm_config_registry=https://npm.corp.test/npm/", "npm_config_@acme:registry=https://acme.test/"]
    );
    assert_eq!(found.roots, [Path::new("/etc/corp.pem")]);
    assert!(!format!("{found:?}").contains("secret"));
}

#[test]
fn without_a_configuration_it_is_the_registry_that_npm_has_built_in() {
    let described = "define('proxy', {\n  default: null,\n})\ndefine('registry', {\n  default: 'https://npm.test/',\n})\n";
    let debian = ("/usr/share/nodejs/npm/lib/utils/config/definitions.js", described);
    assert_eq!(flags(&found("npm", &[], &[debian]).unwrap()), ["GET,HEAD npm.test"]);
    let scope = ("/home/me/.npmrc", "@acme:registry=https://acme.test/\n");
    let both = found("npm", &[], &[debian, scope]).unwrap();
    assert_eq!(flags(&both), ["GET,HEAD npm.test", "GET,HEAD acme.test"]);
    assert_eq!(set(&both), ["npm_config_@acme:registry=https://acme.test/"], "npm inside knows the other");
    let named = [("npm_config_registry", "https://named.test/")];
    assert_eq!(flags(&found("npm", &named, &[debian]).unwrap()), ["GET,HEAD named.test"]);
}

#[test]
fn where_no_host_can_be_read_it_says_what_to_add() {
    for (preset, files) in [
        ("pypi", &[][..]),
        ("pypi", &[("/etc/pip.conf", "[global]\nindex-url = https://a.test/\nno-index = true\n")]),
        ("pypi", &[("/etc/pip.conf", "[global]\nindex-url = file:///srv/wheels\n")]),
        ("npm", &[("/home/me/.npmrc", "registry=https://${HOST}/\n")]),
    ] {
        let bad = found(preset, &[], files).unwrap_err();
        assert!(bad.help.contains("--allow 'GET,HEAD HOST'"), "{preset}: {}", bad.help);
    }
}

#[test]
fn git_reads_and_does_not_push() {
    let found = found("git:git.test", &[], &[]).unwrap();
    assert_eq!(flags(&found), ["GET git.test/**/info/refs", "POST git.test/**/git-upload-pack"]);
}
