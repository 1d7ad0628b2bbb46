//! What is prepared for Python in WebAssembly: which templates there are, what they have loaded, and whether
//! programs still run in them.

use std::path::Path;
use std::time::{Duration, SystemTime};

use cofferdam_backends::wasm::setup::{self, Folder, Kept, SetupError};

use super::findings::{PythonsFound, TemplateFound, Trouble};
use crate::cli::setup::{loaded, remake};
use crate::{host, report};

/// Looks at the folder of what is prepared, and makes none.
pub(super) fn look(state: &Path) -> Option<PythonsFound> {
    let folder = host::prepared_folder(state);
    let nothing = || {
        Trouble::new(
            "no Python is prepared",
            "run `cofferdam setup python` once: a minute or two, and 98 MB to fetch",
        )
    };
    let (code_bytes, templates, trouble) = match found(&folder) {
        Ok((code_bytes, templates)) => {
            let none = !templates.iter().any(|template| template.ready);
            (code_bytes, templates, none.then(nothing))
        }
        Err(error) => {
            let fix = "give it to yourself alone and make it readable (chown, chmod 700), or set COFFERDAM_DATA to \
                       another folder";
            (None, vec![], Some(Trouble::new(report::chain(&error), fix)))
        }
    };
    Some(PythonsFound { folder: folder.to_string_lossy().into_owned(), code_bytes, templates, trouble })
}

fn found(folder: &Path) -> Result<(Option<u64>, Vec<TemplateFound>), SetupError> {
    if matches!(folder.try_exists(), Ok(false)) {
        return Ok((None, vec![]));
    }
    let folder = Folder::open(folder)?;
    let templates = setup::kept(&folder)?.into_iter().map(template).collect();
    Ok((setup::code_bytes(&folder)?, templates))
}

fn template(kept: Kept) -> TemplateFound {
    let (remake, loaded) = (remake(&kept), loaded(&kept.preload));
    let Kept { name, preload, asked, made, bytes, ready } = kept;
    let age = age(SystemTime::now().duration_since(made).unwrap_or_default());
    let made = humantime::format_rfc3339_seconds(made).to_string();
    TemplateFound { name, ready, bytes, made, preload, packages: asked, remake, age, loaded }
}

/// A time in its largest unit.
fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    for (unit, length) in [("day", 86_400), ("hour", 3600), ("minute", 60)] {
        let count = seconds / length;
        if count > 0 {
            let plural = if count == 1 { "" } else { "s" };
            return format!("{count} {unit}{plural} ago");
        }
    }
    "just now".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_in_its_largest_unit() {
        for (seconds, words) in
            [(5, "just now"), (60, "1 minute ago"), (7300, "2 hours ago"), (86_400 * 3, "3 days ago")]
        {
            assert_eq!(age(Duration::from_secs(seconds)), words);
        }
    }

    #[test]
    fn a_look_makes_no_folder_and_says_what_would() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("wasm");
        assert!(found(&folder).unwrap().1.is_empty());
        assert!(!folder.exists());
        std::fs::write(&folder, "no folder").unwrap();
        assert!(found(&folder).is_err());
    }
}
