//! The kernel and a static shell, from Debian's packages: fetched by apt, unpacked below `target/vm`, and
//! never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::problem::Problem;

/// The package that names the current kernel as what it depends on. The one for clouds has no 9p.
const KERNEL: &str = "linux-image-amd64";
const SHELL: &str = "busybox-static";

/// The kernel's modules for the root file system, each after what it needs. Newer kernels have some of
/// them built in, or as one.
const MODULES: [&str; 11] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "9pnet",
    "9pnet_virtio",
    "fscache",
    "netfs",
    "9p",
    "overlay",
];

/// What there is now.
pub(super) struct Found {
    /// The kernel's image.
    pub(super) kernel: PathBuf,
    /// Its modules, compressed or not.
    pub(super) modules: Vec<PathBuf>,
    /// A shell with the usual commands in one static program.
    pub(super) busybox: PathBuf,
}

/// Unpacks them if they aren't there yet; or says why they can't be had.
pub(super) fn get(folder: &Path) -> Result<Result<Found, String>, Problem> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Err("there is a machine for x86-64 only so far".to_owned()));
    }
    let unpacked = folder.join("unpacked");
    if find(&unpacked).is_none() {
        let fetching = folder.join("fetching");
        let _ = fs::remove_dir_all(&fetching); // what an interrupted call left
        let _ = fs::remove_dir_all(&unpacked);
        fs::create_dir_all(&fetching).map_err(Problem::at("create", &fetching))?;
        if let Err(missing) = fetch(&fetching)? {
            return Ok(Err(missing));
        }
        fs::rename(&fetching, &unpacked).map_err(Problem::at("rename", &fetching))?;
    }
    let missing =
        || format!("the packages hold no kernel with the modules for 9p; see {}", unpacked.display());
    Ok(find(&unpacked).ok_or_else(missing))
}

/// Fetches both packages into a folder and unpacks them there.
fn fetch(folder: &Path) -> Result<Result<(), String>, Problem> {
    let Some(kernel) = current_kernel() else {
        return Ok(Err(format!("apt knows no package {KERNEL}; `apt-get update` may help")));
    };
    println!("vm: fetching {kernel} and {SHELL}");
    let mut apt = Command::new("apt-get");
    apt.args(["-q", "-q", "download", &kernel, SHELL]).current_dir(folder).stderr(Stdio::null());
    if !apt.status().is_ok_and(|status| status.success()) {
        return Ok(Err(format!("`apt-get download {kernel} {SHELL}` failed; `apt-get update` may help")));
    }
    for entry in fs::read_dir(folder).map_err(Problem::at("list", folder))? {
        let package = entry.map_err(Problem::at("list", folder))?.path();
        if package.extension().is_some_and(|extension| extension == "deb") {
            let unpacked = Command::new("dpkg-deb").arg("-x").arg(&package).arg(folder).status();
            if !unpacked.is_ok_and(|status| status.success()) {
                return Ok(Err(format!("`dpkg-deb -x {}` failed", package.display())));
            }
            fs::remove_file(&package).map_err(Problem::at("remove", &package))?;
        }
    }
    Ok(Ok(()))
}

/// The package that the one for "the current kernel" stands for.
fn current_kernel() -> Option<String> {
    let output = Command::new("apt-cache").args(["depends", KERNEL]).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| Some(line.trim().strip_prefix("Depends: ")?.to_owned()))
}

fn find(unpacked: &Path) -> Option<Found> {
    let named = |folder: &str, start: &str| {
        let entries = fs::read_dir(unpacked.join(folder)).ok()?;
        let paths = entries.flatten().map(|entry| entry.path());
        paths
            .into_iter()
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start)))
    };
    let kernel = named("boot", "vmlinuz-")?;
    let tree = ["lib/modules", "usr/lib/modules"].iter().find_map(|folder| named(folder, ""))?;
    let mut all = vec![];
    collect(&tree, &mut all);
    let module = |name: &&str| all.iter().find(|path| module_name(path) == Some(name)).cloned();
    let modules: Vec<_> = MODULES.iter().filter_map(module).collect();
    let has_9p = modules.iter().any(|path| module_name(path) == Some("9p"));
    let busybox = ["bin/busybox", "usr/bin/busybox"].map(|path| unpacked.join(path));
    let busybox = busybox.into_iter().find(|path| path.exists())?;
    has_9p.then_some(Found { kernel, modules, busybox })
}

fn module_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.split_once(".ko").map(|(name, _)| name)
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect(&entry.path(), found),
            Ok(_) => found.push(entry.path()),
            Err(_) => {}
        }
    }
}

/// A module's content, unpacked.
pub(super) fn module(path: &Path) -> Result<Vec<u8>, Problem> {
    if path.extension().is_none_or(|extension| extension != "xz") {
        return fs::read(path).map_err(Problem::at("read", path));
    }
    let output = Command::new("xz").arg("-dc").arg(path).stderr(Stdio::inherit()).output();
    Ok(output.map_err(Problem::starting("xz"))?.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_named_by_its_file_compressed_or_not() {
        assert_eq!(module_name(Path::new("/m/9p.ko")), Some("9p"));
        assert_eq!(module_name(Path::new("/m/virtio_pci.ko.xz")), Some("virtio_pci"));
        assert_eq!(module_name(Path::new("/m/modules.order")), None);
    }
}
