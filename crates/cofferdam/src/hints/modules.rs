//! A module that Python didn't find: hidden, beside the script, or in another Python of this machine.
//!
//! Another Python is proposed only where the module lies in it, which is told from the names of files:
//! nothing is run.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Around, shown, word};
use crate::python::{self, Own, SYSTEM};

/// A Python of this machine, and the option that chooses it.
struct Choice {
    flag: &'static str,
    value: PathBuf,
    /// Whose libraries it has.
    prefix: PathBuf,
}

impl Around<'_> {
    /// What to do about a module that wasn't found. Where it isn't one of the host's Pythons that ran, they
    /// don't help; what does stands in the traceback.
    pub(super) fn no_module(&self, module: &str, ran_hosts: bool) -> Option<String> {
        let names = [PathBuf::from(format!("{module}.py")), PathBuf::from(module)];
        if self.asked.files.workspace.is_some() {
            let near = self.in_workspace(&names);
            if let Some(hint) = near.iter().find_map(|path| self.hidden_module(path)) {
                return Some(hint);
            }
            if !near.is_empty() {
                return None; // it is inside: what is wrong is where Python looks
            }
        } else if let Some(found) = names.iter().find_map(|name| self.beside(name.to_str()?)) {
            return Some(self.only_one_file(&found));
        }
        if !ran_hosts {
            return None;
        }
        let python = self.asked.files.python.as_ref();
        if let Some(venv) = python.and_then(|python| python.venv.as_ref()) {
            let folder = venv.as_path();
            if python::has_module(folder, module) {
                return None; // it is there: what is missing is a part of it, or it is for another Python
            }
            let again = if self.asked.is_job { "send the job again" } else { "run this again" };
            return Some(format!(
                "{module} isn't installed in {}: install it there, and {again}",
                shown(folder)
            ));
        }
        if python.is_some() {
            return None; // it was chosen by name: there is nothing better to propose
        }
        Some(self.of_another_python(module))
    }

    /// Where a module is installed, or that it is nowhere.
    fn of_another_python(&self, module: &str) -> String {
        let choices = self.choices();
        let option =
            |choice: &Choice| self.pass(&format!("{} {}", choice.flag, word(&self.typed(&choice.value))));
        if let Some(choice) = choices.iter().find(|choice| python::has_module(&choice.prefix, module)) {
            let place = shown(&choice.prefix);
            return format!("{module} is installed in {place}, and this ran {SYSTEM}: {}", option(choice));
        }
        if let Some(folder) = self.own_packages(module) {
            let options = format!("--in {folder}:{folder} --env PYTHONPATH={folder}", folder = word(&folder));
            return format!(
                "{module} is installed for you alone, in {}, which is not inside: {}",
                shown(&folder),
                self.pass(&options)
            );
        }
        let nowhere = format!(
            "{module} isn't installed in any Python found here (this ran {SYSTEM}), and there is no network \
             inside to install it from"
        );
        match choices.iter().find(|choice| choice.flag == "--venv") {
            Some(choice) => {
                format!(
                    "{nowhere}: install it in {} on this machine, and {}",
                    shown(&choice.value),
                    option(choice)
                )
            }
            None => format!(
                "{nowhere}: make a virtual environment on this machine, install it there, and {}",
                self.pass("--venv DIR")
            ),
        }
    }

    /// The Pythons that could be chosen, the likeliest first.
    fn choices(&self) -> Vec<Choice> {
        let environment = |folder: PathBuf| Choice { flag: "--venv", value: folder.clone(), prefix: folder };
        let own = match python::own(&self.around) {
            Some(Own { venv: Some(folder), .. }) => Some(environment(folder)),
            Some(Own { path, venv: None }) => path.canonicalize().ok().and_then(|real| {
                let prefix = real.parent()?.parent()?.to_owned();
                Some(Choice { flag: "--python", value: path, prefix })
            }),
            None => None,
        };
        let workspace = self.asked.files.workspace.as_ref().map(|workspace| workspace.host.clone());
        let near = self.folders().into_iter().chain(workspace);
        let near = near.flat_map(|folder| [".venv", "venv"].map(|name| folder.join(name)));
        let near = near.filter(|folder| folder.join("pyvenv.cfg").is_file()).map(environment);
        own.into_iter().chain(near).collect()
    }

    /// The folder of packages that the person installed for the system's Python without an environment.
    fn own_packages(&self, module: &str) -> Option<PathBuf> {
        let local = self.around.home.as_ref()?.join(".local");
        python::packages(&local).into_iter().find(|folder| python::holds_module(folder, module))
    }

    /// What of some names is in the workspace, beside the script or at the top, relative to it.
    fn in_workspace(&self, names: &[PathBuf]) -> Vec<PathBuf> {
        let Some(workspace) = &self.asked.files.workspace else { return vec![] };
        let script = self.asked.file.as_ref().and_then(|file| {
            let folder = self.around.folder.join(file.parent()?).canonicalize().ok()?;
            folder.strip_prefix(&workspace.host).ok().map(Path::to_owned)
        });
        let folders = script.into_iter().chain([PathBuf::new()]);
        let all = folders.flat_map(|folder| names.iter().map(move |name| folder.join(name)));
        all.filter(|path| fs::symlink_metadata(workspace.host.join(path)).is_ok()).collect()
    }

    /// A package is hidden as a whole, or only what is in it.
    fn hidden_module(&self, path: &Path) -> Option<String> {
        self.hidden(path).or_else(|| self.hidden(&path.join("__init__.py")))
    }
}
