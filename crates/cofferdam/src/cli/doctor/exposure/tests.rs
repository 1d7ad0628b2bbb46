//! The probes on a planted machine: what can't be planted on a real one.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use tempfile::TempDir;

use super::findings::{Finding, Group, Scope};
use super::surroundings::Surroundings;

/// A machine that has nothing, and a home that has nothing.
struct Planted {
    folder: TempDir,
    environment: Vec<(OsString, OsString)>,
}

impl Planted {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["root", "home", "work"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Planted { folder, environment: vec![] }
    }

    fn file(self, path: &str, content: &str) -> Self {
        let path = self.folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn variable(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn look(&self) -> Vec<Finding> {
        super::look(&Surroundings {
            root: self.path("root"),
            home: Some(self.path("home")),
            environment: self.environment.clone(),
            folder: self.path("work"),
            user: cofferdam_sys::process::effective_user(),
        })
    }

    /// What is found, as `kind place`.
    fn found(&self) -> Vec<String> {
        self.look().iter().map(|it| format!("{} {}", it.kind, it.place)).collect()
    }
}

#[test]
fn nothing_is_found_where_nothing_is() {
    assert_eq!(Planted::new().found(), Vec::<String>::new());
}

#[test]
fn a_cloud_is_told_by_its_firmware_and_by_what_configured_the_machine() {
    for (field, says, cloud) in [
        ("sys_vendor", "Amazon EC2\n", "AWS"),
        ("product_name", "Google Compute Engine\n", "Google Cloud"),
        ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77\n", "Azure"),
        ("sys_vendor", "DigitalOcean\n", "DigitalOcean"),
    ] {
        let found = Planted::new().file(&format!("root/sys/class/dmi/id/{field}"), says).look();
        assert_eq!(found.len(), 1, "{cloud}");
        assert!(found[0].what.contains(cloud), "{:?}", found[0]);
        assert_eq!((found[0].group, found[0].scope), (Group::CloudMetadata, Scope::Machine));
    }
    let own = Planted::new().file("root/sys/class/dmi/id/sys_vendor", "Dell Inc.\n");
    assert_eq!(own.found(), Vec::<String>::new());
    let configured = Planted::new().file("root/run/cloud-init/cloud-id", "aws\n");
    assert_eq!(configured.found(), ["cloud-machine /run/cloud-init/cloud-id"]);
}

#[test]
fn a_pod_is_told_by_its_variables_and_its_token() {
    let token = "var/run/secrets/kubernetes.io/serviceaccount/token";
    let pod =
        Planted::new().file(&format!("root/{token}"), "x").variable("KUBERNETES_SERVICE_HOST", "10.0.0.1");
    assert_eq!(
        pod.found(),
        ["kubernetes-pod KUBERNETES_SERVICE_HOST".to_owned(), format!("kubernetes-account /{token}")]
    );
}

#[test]
fn settings_of_the_kernel_are_found_only_where_they_leave_it_open() {
    let settings = |open: bool| {
        let value = |left_open, closed| if open { left_open } else { closed };
        Planted::new()
            .file("root/proc/sys/kernel/unprivileged_bpf_disabled", value("0\n", "2\n"))
            .file("root/proc/sys/kernel/perf_event_paranoid", value("2\n", "3\n"))
            .file("root/proc/sys/kernel/io_uring_disabled", value("0\n", "2\n"))
            .file("root/proc/sys/kernel/dmesg_restrict", value("0\n", "1\n"))
            .file("root/proc/sys/kernel/yama/ptrace_scope", value("0\n", "1\n"))
            .file("root/proc/sys/user/max_user_namespaces", value("1000\n", "0\n"))
            .file("root/proc/sys/kernel/osrelease", "6.1.0\n")
    };
    let kinds = |planted: &Planted| planted.look().iter().map(|it| it.kind).collect::<Vec<_>>();
    assert_eq!(
        kinds(&settings(true)),
        ["bpf", "perf", "io-uring", "dmesg", "user-namespaces", "ptrace", "shared-kernel"]
    );
    assert_eq!(kinds(&settings(false)), ["shared-kernel"]);
    let without_yama = Planted::new().file("root/proc/sys/kernel/osrelease", "6.1.0\n");
    assert_eq!(kinds(&without_yama), ["ptrace", "shared-kernel"]);
    for restricted in ["unprivileged_userns_clone", "apparmor_restrict_unprivileged_userns"] {
        let value = if restricted.starts_with("app") { "1\n" } else { "0\n" };
        let planted = Planted::new()
            .file("root/proc/sys/user/max_user_namespaces", "1000\n")
            .file(&format!("root/proc/sys/kernel/{restricted}"), value);
        assert_eq!(kinds(&planted), Vec::<&str>::new(), "{restricted}");
    }
}

#[test]
fn a_file_of_the_machine_that_can_be_read_or_written_is_the_machines() {
    let planted = Planted::new().file("root/etc/shadow", "root:x").file("root/etc/cron.d/job", "");
    let found = planted.look();
    assert!(!found.is_empty() && found.iter().all(|it| it.scope == Scope::Machine), "{found:?}");
    let found = planted.found();
    for expected in ["shadow /etc/shadow", "system-cron /etc/cron.d"] {
        assert!(found.iter().any(|it| it == expected), "{found:?}");
    }
}

#[test]
fn the_kernels_keys_of_this_user_are_found_without_their_names() {
    let user = cofferdam_sys::process::effective_user();
    let line = format!("2ae1a3bc I--Q--- 1 perm 3f010000 {user} {user} user my-own-canary: 12\n");
    let planted = Planted::new().file("root/proc/keys", &line);
    assert_eq!(planted.found(), ["kernel-keyring /proc/keys"]);
}

#[test]
fn a_helper_of_git_is_found_without_its_text() {
    let planted =
        Planted::new().file("home/.gitconfig", "[credential]\nhelper = !echo password=my-own-canary\n");
    let found = format!("{:?}", planted.look());
    assert!(found.contains("git-credential-helper") && !found.contains("my-own-canary"), "{found}");
}

#[test]
fn a_credential_is_told_by_its_content_where_its_name_is_no_proof() {
    for (path, harmless, credential) in [
        ("home/.npmrc", "registry=https://example.com\n", "//example.com/:_authToken=x\n"),
        ("home/.docker/config.json", "{\"credsStore\":\"x\"}", "{\"auths\":{\"a\":{\"auth\":\"eA==\"}}}"),
        ("home/.config/pip/pip.conf", "index-url=https://example.com/", "index-url=https://a:b@example.com/"),
        ("home/.ssh/other", "ssh-ed25519 AAAA me", "-----BEGIN OPENSSH PRIVATE KEY-----\nx"),
        ("work/.env", "LEVEL=debug\nAPI_TOKEN=\n", "API_TOKEN=x9\n"),
        ("home/.pgpass", "", "host:5432:db:me:x"),
    ] {
        let is_listed = |content| {
            let found = Planted::new().file(path, content).look();
            found.iter().any(|it| it.group == Group::CredentialFiles)
        };
        assert!(!is_listed(harmless), "{path}");
        assert!(is_listed(credential), "{path}");
    }
}

#[test]
fn a_variable_moves_the_place_in_which_a_credential_is_looked_for() {
    let planted = Planted::new().file("work/elsewhere/credentials.toml", "[registry]\ntoken = \"x\"\n");
    let folder = planted.path("work/elsewhere");
    let planted = planted.variable("CARGO_HOME", folder.clone());
    let expected = format!("cargo-token {}", folder.join("credentials.toml").display());
    assert_eq!(planted.found(), [expected]);
}

#[test]
fn a_file_with_two_names_is_told_once() {
    let planted = Planted::new().file("home/.vault-token", "x").file("home/.kube/config", "token: x");
    let config = planted.path("home/.kube/config");
    let planted = planted.variable("KUBECONFIG", config);
    let found = planted.found();
    assert_eq!(found.iter().filter(|it| it.starts_with("kubernetes-config")).count(), 1, "{found:?}");
}

#[test]
fn a_relative_folder_of_the_path_and_one_that_can_be_written_are_found() {
    let planted = Planted::new().file("home/tools/x", "");
    let path = std::env::join_paths([Path::new(""), Path::new("."), &planted.path("home/tools")]).unwrap();
    let planted = planted.variable("PATH", path);
    assert_eq!(planted.found(), ["program-folder-relative PATH", "program-folder ~/tools"]);
}
