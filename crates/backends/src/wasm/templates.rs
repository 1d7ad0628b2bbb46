//! The templates of Python that are there, and which of them a script is best off with.

use std::collections::BTreeSet;
use std::path::Path;

use super::fit;
use super::setup::{self, Folder, SetupError, Template};

/// What was prepared, looked at once.
#[derive(Debug)]
pub(super) struct Templates {
    folder: Folder,
    /// That of the plain name first.
    all: Vec<Template>,
    /// The first names of the modules of each.
    names: Vec<Names>,
    /// What any of them can import.
    importable: BTreeSet<String>,
}

/// The template that is used where there is no reason for another.
pub(super) const USUAL: &str = "python";

impl Templates {
    /// Looks at a folder of what was prepared.
    ///
    /// # Errors
    ///
    /// [`SetupError`] if somebody else could have written what is in it, or it can't be read.
    pub(super) fn look(folder: &Path) -> Result<Self, SetupError> {
        let folder = Folder::open(folder)?;
        let mut all = setup::all(&folder)?;
        all.sort_by_key(|template| (template.name != USUAL, template.name.clone()));
        Ok(Templates::new(folder, all))
    }

    fn new(folder: Folder, all: Vec<Template>) -> Self {
        let importable = all.iter().flat_map(|template| template.importable.iter().cloned()).collect();
        let names = all.iter().map(Names::of).collect();
        Templates { folder, all, names, importable }
    }

    /// Where everything is.
    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Whether there is a Python at all.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// A template by its place.
    pub(super) fn of(&self, place: usize) -> &Template {
        &self.all[place]
    }

    /// The modules that scripts can import. Templates differ in what they have imported already, and some
    /// have packages besides.
    pub(super) fn importable(&self) -> &BTreeSet<String> {
        &self.importable
    }

    /// The template that is used most, with so much memory.
    pub(super) fn usual(&self, memory_bytes: u64) -> Option<usize> {
        self.all.iter().position(|template| template.memory_bytes <= memory_bytes)
    }

    /// The template that a script is best off with: one that can import all that it does, and has imported
    /// most of that already. The one that is open, if none is better.
    pub(super) fn best(&self, source: &[u8], open: Option<usize>, memory_bytes: u64) -> Option<usize> {
        let imports = fit::imports(source);
        let worth = |place: &usize| {
            let Names { importable, preload } = &self.names[*place];
            let (can, did) = (among(&imports, importable), among(&imports, preload));
            (can, did, Some(*place) == open, std::cmp::Reverse(*place))
        };
        let fits = |place: &usize| self.all[*place].memory_bytes <= memory_bytes;
        (0..self.all.len()).filter(fits).max_by_key(worth)
    }
}

/// The first names of modules, which imports are looked up by.
#[derive(Debug)]
struct Names {
    importable: BTreeSet<String>,
    preload: BTreeSet<String>,
}

impl Names {
    fn of(template: &Template) -> Self {
        let first = |module: &String| Some(module.split('.').next()?.to_owned());
        Names {
            importable: template.importable.iter().filter_map(first).collect(),
            preload: template.preload.iter().filter_map(first).collect(),
        }
    }
}

/// How many of a script's imports are among these.
fn among(imports: &BTreeSet<String>, names: &BTreeSet<String>) -> usize {
    imports.iter().filter(|import| names.contains(*import)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(name: &str, preload: &[&str], importable: &[&str], memory_bytes: u64) -> Template {
        let texts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Template {
            name: name.into(),
            module: "/m".into(),
            image: "/i".into(),
            library: "/l".into(),
            data: "/d".into(),
            importable: texts(importable).into_iter().collect(),
            preload: texts(preload),
            memory_bytes,
            held: vec![],
        }
    }

    #[test]
    fn a_script_gets_the_template_that_has_done_most_of_its_work() {
        let place = tempfile::tempdir().unwrap();
        let science = ["json", "numpy", "pandas"];
        let all = vec![
            template("python", &["json"], &science, 10),
            template("python:mine", &["json"], &["json", "numpy", "pandas", "jinja2"], 10),
            template("python:science", &["json", "numpy.linalg", "pandas"], &science, 100),
        ];
        let templates = Templates::new(Folder::open(place.path()).unwrap(), all);
        let best = |source: &str, open, memory| templates.best(source.as_bytes(), open, memory);
        assert_eq!(best("print(1)", None, 1000), Some(0));
        assert_eq!(best("print(1)", Some(2), 1000), Some(2), "what is open is good enough");
        assert_eq!(best("import pandas", Some(0), 1000), Some(2));
        assert_eq!(best("import numpy as np", None, 1000), Some(2));
        assert_eq!(best("import pandas", Some(0), 50), Some(0), "the other needs more memory");
        assert_eq!(best("import jinja2", Some(0), 1000), Some(1));
        assert_eq!(
            best("import jinja2, pandas", Some(0), 1000),
            Some(1),
            "what can't be imported counts more"
        );
        assert_eq!(best("print(1)", None, 5), None);
        assert_eq!((templates.usual(1000), templates.usual(5)), (Some(0), None));
    }
}
