//! What a prepared file depends on, as one number: where it differs, the file is made anew.

use sha2::{Digest, Sha256};
use wasmtime::Engine;

use super::digest::{hex, sha256};
use super::snapshot;
use super::wheel::WHEEL_SHA256;
use crate::wasm::engine;
use crate::wasm::wire::PYTHON_PREOPENS;

/// Raised when the way that code or templates are made changes in a way that nothing below says.
const RECIPE_VERSION: u32 = 2;

/// The digits of a digest that a file's name has: 64 bits, against accidents.
const DIGITS: usize = 16;

/// The fingerprint of Python's code, which all templates share.
pub(super) fn of_code(engine: &Engine) -> String {
    short(&hex(&code(engine).finalize()))
}

/// The fingerprint of a Python template.
pub(super) fn of_python(engine: &Engine, preload: &[String], packages: &[String]) -> String {
    let mut digest = code(engine);
    let texts = snapshot::PRELUDE.into_iter().chain([snapshot::TLS, snapshot::START]);
    let folders = PYTHON_PREOPENS.iter().filter_map(|(guest, _)| guest.to_str().ok());
    let asked = preload.iter().chain(packages).map(String::as_str);
    for text in texts.chain(folders).chain(asked) {
        add(&mut digest, text);
    }
    short(&hex(&digest.finalize()))
}

fn code(engine: &Engine) -> Sha256 {
    let mut digest = Sha256::new();
    digest.update(RECIPE_VERSION.to_le_bytes());
    engine::compatibility(engine, &mut digest);
    add(&mut digest, WHEEL_SHA256);
    digest
}

fn add(digest: &mut Sha256, text: &str) {
    digest.update((text.len() as u64).to_le_bytes());
    digest.update(text);
}

/// The fingerprint of a prepared module: its own hash, and the engine's.
pub(super) fn of_module(engine: &Engine, wasm: &[u8]) -> String {
    format!("{}-{}", short(&sha256(wasm)), of_engine(engine))
}

/// The fingerprint of the engine alone.
pub(super) fn of_engine(engine: &Engine) -> String {
    let mut digest = Sha256::new();
    engine::compatibility(engine, &mut digest);
    short(&hex(&digest.finalize()))
}

fn short(hex: &str) -> String {
    hex[..DIGITS].to_owned()
}
