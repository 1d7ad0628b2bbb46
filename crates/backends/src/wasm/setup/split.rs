//! Takes a core module apart into its code and what it begins with.
//!
//! A module's code takes a minute to compile, and is the same in every template; the memory of each is its own.
//! So they are two modules: the code imports the memory and the globals, and an *image* exports them
//! ([`whole`](crate::wasm::whole) puts both together). An image has no code, so it is compiled in no time, and a
//! snapshot of a program is one more image.

use std::ops::Range;

use wasm_encoder::{
    ConstExpr, DataSection, Encode, EntityType, ExportKind, ExportSection, GlobalSection, GlobalType,
    MemorySection, MemoryType, Module, RawSection, SectionId, ValType,
};
use wasmparser::{BinaryReaderError, DataKind, Operator, Parser, Payload};

use crate::wasm::whole::{IMAGE, MEMORY};

/// A module taken apart.
#[derive(Debug)]
pub(super) struct Split {
    /// The module without its memory and globals, which it imports.
    pub(super) code: Vec<u8>,
    /// What it begins with.
    pub(super) image: Image,
}

/// The state of a module: its one memory, and its globals.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Image {
    /// The size of the memory.
    pub(super) pages: u64,
    /// Its bytes that aren't zero, by where they are.
    pub(super) contents: Vec<(u32, Vec<u8>)>,
    pub(super) globals: Vec<Global>,
}

/// A global of 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Global {
    pub(super) changes: bool,
    pub(super) value: i32,
}

/// A module that can't be taken apart.
#[derive(Debug, thiserror::Error)]
pub(super) enum SplitError {
    /// It is no module.
    #[error(transparent)]
    Bad(#[from] BinaryReaderError),
    /// It has what isn't known here how to take apart. A compiler for WASI makes no such thing.
    #[error("its {0} can't be taken out of it")]
    Unknown(&'static str),
}

impl Split {
    /// Takes a module apart.
    pub(super) fn of(wasm: &[u8]) -> Result<Self, SplitError> {
        let mut image = Image::default();
        let mut sections = vec![];
        for payload in Parser::new(0).parse_all(wasm) {
            let payload = payload?;
            let kept = image.take(&payload)?;
            match payload.as_section() {
                Some((id, range)) if kept => sections.push((id, range)),
                _ => {}
            }
        }
        if image.pages == 0 {
            return Err(SplitError::Unknown("memory"));
        }
        Ok(Split { code: code(wasm, sections, &image), image })
    }
}

/// The code alone: these sections, and more imports.
fn code(wasm: &[u8], sections: Vec<(u8, Range<usize>)>, image: &Image) -> Vec<u8> {
    let mut code = Module::new();
    let mut imports = Some(());
    for (id, range) in sections {
        let is_imports = id == SectionId::Import as u8;
        // Without imports of its own it has them where those would be: after the types.
        if imports.is_some() && (is_imports || id > SectionId::Import as u8) {
            imports = None;
            let own = if is_imports { &wasm[range.clone()] } else { &[0][..] };
            code.section(&RawSection { id: SectionId::Import as u8, data: &image.added_to(own) });
        }
        if !is_imports {
            code.section(&RawSection { id, data: &wasm[range] });
        }
    }
    code.finish()
}

impl Image {
    /// Takes what a part of a module says about its state; says whether the part stays in the code.
    fn take(&mut self, payload: &Payload<'_>) -> Result<bool, SplitError> {
        match payload {
            Payload::MemorySection(memories) => {
                for memory in memories.clone() {
                    let memory = memory?;
                    let plain = !memory.memory64 && !memory.shared && memory.maximum.is_none();
                    if self.pages != 0 || !plain {
                        return Err(SplitError::Unknown("memory"));
                    }
                    self.pages = memory.initial;
                }
                Ok(false)
            }
            Payload::GlobalSection(globals) => {
                for global in globals.clone() {
                    let global = global?;
                    let plain = global.ty.content_type == wasmparser::ValType::I32;
                    let value = number(&global.init_expr)?.filter(|_| plain);
                    let value = value.ok_or(SplitError::Unknown("globals"))?;
                    self.globals.push(Global { changes: global.ty.mutable, value });
                }
                Ok(false)
            }
            Payload::DataSection(segments) => {
                for segment in segments.clone() {
                    let segment = segment?;
                    let DataKind::Active { memory_index: 0, offset_expr } = &segment.kind else {
                        return Err(SplitError::Unknown("data"));
                    };
                    let at = number(offset_expr)?.ok_or(SplitError::Unknown("data"))?;
                    self.contents.push((at.cast_unsigned(), segment.data.to_vec()));
                }
                Ok(false)
            }
            Payload::StartSection { .. } => Err(SplitError::Unknown("start")),
            // Only code that refers to single segments needs it, and those stay nobody's.
            Payload::DataCountSection { .. } => Err(SplitError::Unknown("data")),
            Payload::ImportSection(imports) => {
                let functions = imports.clone().into_imports().all(|import| {
                    import.is_ok_and(|import| matches!(import.ty, wasmparser::TypeRef::Func(_)))
                });
                // Others would come before ours in their order.
                if functions { Ok(true) } else { Err(SplitError::Unknown("imports")) }
            }
            Payload::CustomSection(_) => Ok(false),
            _ => Ok(true),
        }
    }

    /// The content of an import section with the memory and the globals added to it.
    fn added_to(&self, imports: &[u8]) -> Vec<u8> {
        let (count, digits) = length(imports);
        let mut data = vec![];
        (count + 1 + self.globals.len() as u32).encode(&mut data);
        data.extend(&imports[digits..]);
        let mut import = |name: &str, what: EntityType| {
            IMAGE.encode(&mut data);
            name.encode(&mut data);
            what.encode(&mut data);
        };
        import(MEMORY, memory(self.pages).into());
        for (number, global) in self.globals.iter().enumerate() {
            import(&number.to_string(), global.kind().into());
        }
        data
    }

    /// The image as a module, which exports the memory, and the globals by their numbers.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (mut memories, mut globals, mut exports) =
            (MemorySection::new(), GlobalSection::new(), ExportSection::new());
        memories.memory(memory(self.pages));
        exports.export(MEMORY, ExportKind::Memory, 0);
        for (number, global) in (0..).zip(&self.globals) {
            globals.global(global.kind(), &ConstExpr::i32_const(global.value));
            exports.export(&number.to_string(), ExportKind::Global, number);
        }
        let mut data = DataSection::new();
        for (at, bytes) in &self.contents {
            data.active(0, &ConstExpr::i32_const(at.cast_signed()), bytes.iter().copied());
        }
        let mut module = Module::new();
        module.section(&memories).section(&globals).section(&exports).section(&data);
        module.finish()
    }
}

impl Global {
    fn kind(self) -> GlobalType {
        GlobalType { val_type: ValType::I32, mutable: self.changes, shared: false }
    }
}

fn memory(pages: u64) -> MemoryType {
    MemoryType { minimum: pages, maximum: None, memory64: false, shared: false, page_size_log2: None }
}

/// A number that stands for itself.
fn number(expression: &wasmparser::ConstExpr<'_>) -> Result<Option<i32>, BinaryReaderError> {
    let mut operators = expression.get_operators_reader().into_iter();
    let first = operators.next().transpose()?;
    let last = operators.next().transpose()?;
    Ok(match (first, last) {
        (Some(Operator::I32Const { value }), Some(Operator::End)) => Some(value),
        _ => None,
    })
}

/// The number of things at the front of a section that was parsed before, and how many bytes that takes:
/// unsigned LEB128.
fn length(section: &[u8]) -> (u32, usize) {
    let (mut count, mut digits) = (0, 0);
    for byte in section {
        count |= u32::from(byte & 0x7f) << (7 * digits);
        digits += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    (count, digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Result<Split, SplitError> {
        Split::of(&wat::parse_str(text).unwrap())
    }

    #[test]
    fn code_and_image_say_together_what_the_module_said() {
        let Split { code, image } = split(
            r#"(module (type (func)) (import "a" "b" (func)) (memory (export "memory") 2)
                (global $g (mut i32) (i32.const -5)) (global i32 (i32.const 7)) (func (export "f") (global.set $g (i32.load (i32.const 8))))
                (data (i32.const 8) "abc") (data (i32.const 65536) "\00z"))"#,
        )
        .unwrap();
        let contents = vec![(8, b"abc".to_vec()), (65536, b"\0z".to_vec())];
        let globals = vec![Global { changes: true, value: -5 }, Global { changes: false, value: 7 }];
        assert_eq!(image, Image { pages: 2, contents, globals });
        let code = wasmprinter(&code);
        assert_eq!(
            code,
            [
                "import a.b",
                "import cofferdam.memory",
                "import cofferdam.0",
                "import cofferdam.1",
                "export memory",
                "export f"
            ]
        );
        assert_eq!(wasmprinter(&image.encode()), ["export memory", "export 0", "export 1"]);
    }

    /// What a valid module imports and exports.
    fn wasmprinter(wasm: &[u8]) -> Vec<String> {
        let module = wasmtime::Module::new(&wasmtime::Engine::default(), wasm).unwrap();
        let imports = module.imports().map(|import| format!("import {}.{}", import.module(), import.name()));
        imports.chain(module.exports().map(|export| format!("export {}", export.name()))).collect()
    }

    #[test]
    fn what_cannot_be_taken_apart_is_refused() {
        for (text, part) in [
            ("(module)", "memory"),
            ("(module (memory 1 2))", "memory"),
            ("(module (memory 1) (memory 1))", "memory"),
            (r#"(module (import "a" "m" (memory 1)))"#, "imports"),
            (
                r#"(module (memory 1) (func $f) (global funcref (ref.func $f)) (export "f" (func $f)))"#,
                "globals",
            ),
            ("(module (memory 1) (global (mut i64) (i64.const 0)))", "globals"),
            (r#"(module (memory 1) (data "passive"))"#, "data"),
            ("(module (memory 1) (func $f) (start $f))", "start"),
        ] {
            let found = split(text);
            assert!(matches!(found, Err(SplitError::Unknown(it)) if it == part), "{text}: {found:?}");
        }
        assert!(matches!(Split::of(b"\0asm\x01\0\0\0\x01"), Err(SplitError::Bad(_))));
    }
}
