//! Prepared files: native code that the engine maps and runs as it finds it. The only place outside of `sys`
//! with `unsafe`.
//!
//! Whoever can write such a file can run anything, so one is opened only where the path leads to a regular
//! file that nobody could have changed: on the host, out of a folder that was checked
//! ([`Folder`](super::setup::Folder)), to make a template with Python's own code; in a worker, where the host's
//! jail shows it read-only, for everything else. Nothing that is somebody else's runs outside of a jail.

use std::fs::File;
use std::io;
use std::path::Path;

use cofferdam_sys::fd;
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

/// Opens a prepared core module.
///
/// # Errors
///
/// If there is no such file, or if it was made by another version, for another processor or with other
/// settings.
pub(super) fn load_module(engine: &Engine, path: &Path) -> wasmtime::Result<Module> {
    let file = regular(path)?;
    // SAFETY: the file is what `Engine::precompile_module` made of a module. In `setup` it was found in a
    // folder that only its user can write. In a worker, the jail shows what the host found there: the worker
    // can't write it, and whoever changes the jail's mounts is the host.
    unsafe { Module::deserialize_open_file(engine, file) }
}

/// Opens a prepared component.
///
/// # Errors
///
/// Those of [`load_module`].
pub(super) fn load_component(engine: &Engine, path: &Path) -> wasmtime::Result<Component> {
    regular(path)?;
    // SAFETY: as in `load_module`. That the path is opened a second time changes nothing: nobody inside the
    // jail can put another file there.
    unsafe { Component::deserialize_file(engine, path) }
}

fn regular(path: &Path) -> io::Result<File> {
    fd::open_regular(path)?.ok_or_else(|| io::Error::other("it is not a file"))
}
