//! The templates of Python that are there, and which of them a script is best off with.

use std::cmp::Reverse;
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
    /// The first names of the modules that each can import.
    names: Vec<BTreeSet<String>>,
    /// Whether each can import more than the one that can least: it has packages besides.
    has_packages: Vec<bool>,
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
        let names =
            |template: &Template| template.importable.iter().map(|name| first(name).to_owned()).collect();
        let names: Vec<BTreeSet<String>> = all.iter().map(names).collect();
        let least = names.iter().map(BTreeSet::len).min().unwrap_or(0);
        let has_packages = names.iter().map(|names| names.len() > least).collect();
        Templates { folder, all, names, has_packages, importable }
    }

    /// Where everything is.
    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Whether there is a Python at all.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The names of all.
    pub(super) fn all_names(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|template| template.name.as_str())
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

    /// The template that a script is best off with: one that can import all that it does, without packages that it
    /// doesn't import, since what was imported of them may have changed other modules; and that has imported most of
    /// what it does. Of those the one that is open, or else the smallest.
    pub(super) fn best(&self, source: &[u8], open: Option<usize>, memory_bytes: u64) -> Option<usize> {
        let imports = fit::imports(source);
        let worth = |place: &usize| {
            let (template, importable) = (&self.all[*place], &self.names[*place]);
            let can = imports.iter().filter(|import| importable.contains(first(import))).count();
            let did = imports.iter().filter(|import| template.loaded.contains(*import)).count();
            let foreign = self.has_packages[*place];
            (can, !foreign, did, Some(*place) == open, Reverse(template.memory_bytes), Reverse(*place))
        };
        let fits = |place: &usize| self.all[*place].memory_bytes <= memory_bytes;
        (0..self.all.len()).filter(fits).max_by_key(worth)
    }

    /// What a script imports anew in the template that it is best off with.
    pub(super) fn unloaded(&self, source: &[u8], memory_bytes: u64) -> BTreeSet<String> {
        let Some(best) = self.best(source, None, memory_bytes) else { return BTreeSet::new() };
        let (template, importable) = (&self.all[best], &self.names[best]);
        let mut imports = fit::imports(source);
        imports.retain(|import| importable.contains(first(import)) && !template.loaded.contains(import));
        imports
    }
}

/// The first part of a module's name, by which it is looked for.
fn first(module: &str) -> &str {
    module.split('.').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(name: &str, loaded: &str, importable: &str, memory_bytes: u64) -> Template {
        let names = |text: &str| text.split_whitespace().map(str::to_owned).collect::<BTreeSet<_>>();
        Template {
            name: name.into(),
            module: "/m".into(),
            image: "/i".into(),
            library: "/l".into(),
            data: "/d".into(),
            importable: names(importable),
            preload: vec![],
            loaded: names(loaded),
            memory_bytes,
            held: vec![],
        }
    }

    fn templates(place: &Path) -> Templates {
        let science = "json numpy pandas matplotlib";
        let all = vec![
            template("python", "json re", science, 10),
            template("python:mine", "json re", "json numpy pandas matplotlib jinja2", 10),
            template(
                "python:science",
                "json re numpy numpy.linalg pandas dateutil matplotlib matplotlib.pyplot",
                science,
                100,
            ),
            template("python:small", "json re numpy numpy.linalg", science, 50),
        ];
        Templates::new(Folder::open(place).unwrap(), all)
    }

    #[test]
    fn a_script_gets_the_template_that_has_done_most_of_its_work() {
        let place = tempfile::tempdir().unwrap();
        let templates = templates(place.path());
        let best = |source: &str, open, memory| templates.best(source.as_bytes(), open, memory);
        assert_eq!(best("print(1)", None, 1000), Some(0));
        assert_eq!(best("print(1)", Some(2), 1000), Some(2), "what is open is good enough");
        assert_eq!(best("import pandas", Some(0), 1000), Some(2));
        assert_eq!(best("import numpy as np", None, 1000), Some(3), "the smallest that has all of it");
        assert_eq!(best("import numpy.linalg, pandas", None, 1000), Some(2));
        assert_eq!(best("import re", Some(0), 1000), Some(0), "what was loaded on the way counts too");
        assert_eq!(best("import matplotlib.pyplot as plt", Some(0), 1000), Some(2));
        assert_eq!(best("import pandas", Some(0), 40), Some(0), "the other needs more memory");
        assert_eq!(best("import jinja2", Some(0), 1000), Some(1));
        assert_eq!(
            best("import jinja2, pandas", Some(0), 1000),
            Some(1),
            "what can't be imported counts more"
        );
        // Whatever a package has done to other modules when it was imported.
        assert_eq!(best("import json, re", Some(1), 1000), Some(0), "a package that nobody asked for");
        assert_eq!(best("print(1)", None, 5), None);
        assert_eq!((templates.usual(1000), templates.usual(5)), (Some(0), None));
    }

    #[test]
    fn what_a_script_waits_for_is_what_its_template_has_not_loaded() {
        let place = tempfile::tempdir().unwrap();
        let templates = templates(place.path());
        let unloaded = |source: &str, memory| {
            let names = templates.unloaded(source.as_bytes(), memory);
            names.into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(unloaded("import json, pandas", 1000), "");
        assert_eq!(unloaded("import json, pandas, nobody_has_it", 40), "pandas");
        assert_eq!(unloaded("import pandas", 5), "", "it doesn't run at all");
    }
}
