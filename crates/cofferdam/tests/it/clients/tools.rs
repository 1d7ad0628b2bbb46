//! Tools of the shell.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use cofferdam_testkit::origins::Share;

use super::{Place, REASON, for_each_user, make, this_test};

#[test]
fn curl_in_either_version_of_http() {
    for_each_user(this_test!("curl_in_either_version_of_http"), &["/usr/bin/curl"], |place| {
        for version in ["--http1.1", "--http2"] {
            let curl = |url: &'static str| ["--", "curl", "-sS", "--fail-with-body", version, url];
            place.reaches(&[], &curl("https://api.test/ok"), "ok");
            place.is_refused(&[], &curl("https://other.test/ok"), "\"code\":\"host_not_allowed\"");
            place.is_refused(&[], &curl("http://other.test/ok"), "--allow http://other.test");
        }
        let failed = place.run(&[], &["--", "curl", "-sS", "--fail-with-body", "https://other.test/"]);
        assert_eq!(failed.code, 22, "{failed:?}");
    });
}

/// What a body, an event and a trailer look like at the other end.
#[test]
fn curl_gets_what_is_sent_and_sends_what_it_has() {
    for_each_user(this_test!("curl_gets_what_is_sent_and_sends_what_it_has"), &["/usr/bin/curl"], |place| {
        let curl = |more: &[&'static str]| [&["--", "curl", "-sS", "--fail-with-body"][..], more].concat();
        place.reaches(
            &[],
            &curl(&["--http2", "-D", "-", "-d", "x", "https://api.test/trailers"]),
            "grpc-status: 0",
        );
        place.reaches(&[], &curl(&["--compressed", "https://api.test/gzip"]), "compressed, compressed");
        place.reaches(&[], &curl(&["-N", "https://api.test/events"]), "data: 3");
        let upload = "head -c 300000 /dev/zero | curl -sS -H 'Transfer-Encoding: chunked' -T - https://api.test/upload";
        place.reaches(&[], &["--", "sh", "-c", upload], "300000");
        place.reaches(
            &[],
            &["--", "sh", "-c", "curl -sS 'https://api.test/large?bytes=20000000' | wc -c"],
            "20000000",
        );
    });
}

#[test]
fn wget() {
    for_each_user(this_test!("wget"), &["/usr/bin/wget"], |place| {
        let wget = |url: &'static str| ["--", "wget", "-nv", "--tries=1", "-O", "-", url];
        place.reaches(&[], &wget("https://api.test/ok"), "ok");
        place.is_refused(&[], &wget("https://other.test/ok"), REASON);
    });
}

/// A repository that is large enough for its pack to be compressed on the way.
fn repository(place: &Place) {
    let work = place.product.folder().join("work");
    std::fs::create_dir(&work).unwrap();
    std::fs::write(work.join("page"), "a page of the repository\n".repeat(2000)).unwrap();
    for number in 0..50 {
        std::fs::write(work.join(format!("page-{number}")), number.to_string().repeat(500)).unwrap();
    }
    let git = |words: &[&str]| {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.test"]).args(words);
        make(command.current_dir(&work).env("GIT_CONFIG_GLOBAL", "/dev/null"));
    };
    git(&["init", "-q", "-b", "main"]);
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "pages"]);
    let served = place.product.folder().join("served");
    git(&["clone", "-q", "--bare", ".", served.join("pages.git").to_str().unwrap()]);
    let variables = [("GIT_PROJECT_ROOT", served.to_str().unwrap()), ("GIT_HTTP_EXPORT_ALL", "1")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    place.net.share("/git", Share::Program { path: BACKEND.into(), variables });
    std::fs::set_permissions(place.product.folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
}

const BACKEND: &str = "/usr/lib/git-core/git-http-backend";

#[test]
fn git_clones_over_https() {
    for_each_user(this_test!("git_clones_over_https"), &["/usr/bin/git", BACKEND], |place| {
        assert!(Path::new(BACKEND).exists());
        repository(place);
        let clone = "git clone -q https://api.test/git/pages.git && git -C pages fsck && wc -l < pages/page";
        place.reaches(&[], &["--", "sh", "-c", clone], "2000");
        let clone = ["--", "git", "clone", "https://other.test/git/pages.git"];
        place.is_refused(&[], &clone, &format!("remote: {REASON}"));
    });
}
