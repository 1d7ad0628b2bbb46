//! Installers of packages, with an index of the test's.

use std::process::Command;

use cofferdam_testkit::origins::Share;

use super::{Place, REASON, for_each_user, make, this_test};

/// Makes a wheel, which is an archive with three files beside the module.
const WHEEL: &str = r"
import sys, zipfile
with zipfile.ZipFile(sys.argv[1] + '/thing-1.0-py3-none-any.whl', 'w') as wheel:
    wheel.writestr('thing.py', 'print(\'a thing that was installed\')')
    wheel.writestr('thing-1.0.dist-info/METADATA', 'Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n')
    wheel.writestr('thing-1.0.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    wheel.writestr('thing-1.0.dist-info/RECORD', 'thing.py,,\nthing-1.0.dist-info/METADATA,,\nthing-1.0.dist-info/WHEEL,,\nthing-1.0.dist-info/RECORD,,\n')
";

fn python_index(place: &Place) {
    let folder = place.product.folder().join("index");
    std::fs::create_dir_all(folder.join("thing")).unwrap();
    make(Command::new("/usr/bin/python3").args(["-c", WHEEL]).arg(&folder));
    let page = "<a href=\"/files/thing-1.0-py3-none-any.whl\">thing-1.0-py3-none-any.whl</a>";
    std::fs::write(folder.join("thing/index.html"), page).unwrap();
    place.net.share("/simple/", Share::Folder(folder.clone()));
    place.net.share("/files/", Share::Folder(folder));
}

#[test]
fn pip() {
    for_each_user(this_test!("pip"), &["/usr/bin/python3", "/usr/lib/python3/dist-packages/pip"], |place| {
        python_index(place);
        let install = |more: &str| {
            format!(
                "python3 -m pip install --no-cache-dir --disable-pip-version-check --retries 0 --target /tmp/things \
                 {more} && PYTHONPATH=/tmp/things python3 -m thing"
            )
        };
        let refused = |more: &str, words: &str| {
            place.is_refused(&[], &["--", "sh", "-c", &install(more)], words);
        };
        let from_index = |host: &str| format!("--index-url https://{host}/simple/ thing");
        place.reaches(
            &[],
            &["--", "sh", "-c", &install(&from_index("api.test"))],
            "a thing that was installed",
        );
        // It says why it couldn't have a file, and why it couldn't ask an index only where it is told to say more.
        refused("https://other.test/files/thing-1.0-py3-none-any.whl", REASON);
        refused(&format!("-vv {}", from_index("other.test")), REASON);
        refused(&from_index("other.test"), "No matching distribution found for thing");
    });
}

fn node_registry(place: &Place) {
    let folder = place.product.folder().join("registry");
    let package = folder.join("package");
    std::fs::create_dir_all(&package).unwrap();
    std::fs::write(package.join("package.json"), r#"{"name":"thing","version":"1.0.0","main":"index.js"}"#)
        .unwrap();
    std::fs::write(package.join("index.js"), "console.log('a thing that was installed')").unwrap();
    make(Command::new("tar").args(["-czf", "thing-1.0.0.tgz", "package"]).current_dir(&folder));
    let about = r#"{"name":"thing","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"thing","version":"1.0.0",
        "dist":{"tarball":"https://api.test/tarballs/thing-1.0.0.tgz"}}}}"#;
    std::fs::write(folder.join("thing"), about).unwrap();
    place.net.share("/npm/", Share::Folder(folder.clone()));
    place.net.share("/tarballs/", Share::Folder(folder));
}

#[test]
fn npm() {
    for_each_user(this_test!("npm"), &["/usr/bin/npm", "/usr/bin/node"], |place| {
        node_registry(place);
        let install = |host: &str| {
            format!(
                "npm install --no-audit --no-fund --no-update-notifier --fetch-retries 0 --prefix /tmp/things \
                 --registry https://{host}/npm/ thing && node /tmp/things/node_modules/thing"
            )
        };
        place.reaches(&[], &["--", "sh", "-c", &install("api.test")], "a thing that was installed");
        place.is_refused(&[], &["--", "sh", "-c", &install("other.test")], REASON);
    });
}
