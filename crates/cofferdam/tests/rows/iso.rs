//! File system, process and instance isolation.

use cofferdam_testkit::rows::Row;

use crate::Ended;
use crate::row;

row!("ISO-01", files_of_the_host_cannot_be_read);

fn files_of_the_host_cannot_be_read(row: &mut Row) -> Ended {
    let (path, secret) = row.canary("canary.txt");
    let relative = path.strip_prefix("/").unwrap().display().to_string();
    // The secret itself must not be on the command line, or everybody's /proc would hold it.
    let (head, tail) = secret.split_at(10);
    let probe = format!(
        r#"
import glob, os
secret = {head:?} + {tail:?}
places = {{'by its path': ['/' + {relative:?}], 'by dots': ['/usr/' + '../' * 40 + {relative:?}]}}
for root in ['/proc/self/root', '/proc/1/root', '/proc/self/cwd/' + '../' * 40]:
    places['through ' + root[:15]] = [root + '/' + {relative:?}]
places['through any root'] = [root + '/' + {relative:?} for root in glob.glob('/proc/[0-9]*/root')]
places['from any folder'] = [cwd + '/' + '../' * 40 + {relative:?} for cwd in glob.glob('/proc/[0-9]*/cwd')]
def read(paths):
    for path in paths:
        try:
            with open(path) as file:
                if file.read() == secret: return True
        except OSError: pass
    return False
for name, paths in places.items():
    attempt(name, lambda: read(paths))
"#
    );
    row.denies(&probe);
    Ended::Tested
}
