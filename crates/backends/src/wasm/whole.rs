//! A program in two modules: its code, and an image of the memory and the globals that it begins with.
//!
//! The code is the same for every template of Python, and is compiled once for all; so is what `setup` makes
//! templates with. Each instance is two: the image's, whose memory is a private view of the prepared file's
//! pages, and the code's, which imports that.

use wasmtime::{Engine, Extern, Instance, InstancePre, Linker, Module, Store};

/// The name under which code imports what an image exports.
pub(super) const IMAGE: &str = "cofferdam";

/// The memory among that. Globals have numbers.
pub(super) const MEMORY: &str = "memory";

/// Code and an image, with everything resolved that does not depend on a run.
pub(super) struct Whole<T: 'static> {
    linker: Linker<T>,
    code: Module,
    image: InstancePre<T>,
    /// What the code imports, in its order.
    imports: Vec<Import>,
}

enum Import {
    Host { module: String, name: String },
    Image(String),
}

/// An instance.
pub(super) struct Both {
    pub(super) code: Instance,
    pub(super) image: Instance,
}

impl<T> Whole<T> {
    /// Puts code and an image together. What the code imports besides comes from the linker.
    ///
    /// # Errors
    ///
    /// If the image is none, since it imports something.
    pub(super) fn new(
        engine: &Engine,
        linker: Linker<T>,
        code: Module,
        image: &Module,
    ) -> wasmtime::Result<Self> {
        let image = Linker::new(engine).instantiate_pre(image)?;
        let imports = code.imports().map(|import| match (import.module(), import.name()) {
            (IMAGE, name) => Import::Image(name.to_owned()),
            (module, name) => Import::Host { module: module.to_owned(), name: name.to_owned() },
        });
        let imports = imports.collect();
        Ok(Whole { linker, code, image, imports })
    }

    /// Makes an instance.
    ///
    /// # Errors
    ///
    /// If the code imports what neither has, or the store's limits are lower than what it begins with.
    pub(super) fn instantiate(&self, store: &mut Store<T>) -> wasmtime::Result<Both> {
        let image = self.image.instantiate(&mut *store)?;
        let given = |import: &Import| match import {
            Import::Host { module, name } => self.linker.get(&mut *store, module, name),
            Import::Image(name) => image
                .get_export(&mut *store, name)
                .ok_or_else(|| wasmtime::Error::msg(format!("its image has no `{name}`"))),
        };
        let given = self.imports.iter().map(given).collect::<wasmtime::Result<Vec<Extern>>>()?;
        let code = Instance::new(&mut *store, &self.code, &given)?;
        Ok(Both { code, image })
    }
}
