//! The kernel, and what it shows of itself. Small files are read and `/dev/kvm` is opened.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use cofferdam_backends::container::Host;
use cofferdam_core::capability::Capability;
use cofferdam_sys::cgroup::{Controller, Missing, Version};
use cofferdam_sys::landlock;

use super::findings::{
    CgroupFound, HostFound, KvmDevice, KvmFound, LandlockFound, SeccompFound, Trouble, UserNamespacesFound,
};

/// Looks at the rest of the host; what containers need of it has been looked at.
pub(super) fn look(container: &Host) -> HostFound {
    HostFound {
        kernel: text("/proc/sys/kernel/osrelease"),
        architecture: std::env::consts::ARCH,
        root: container.root,
        container_signs: container_signs(),
        cgroups: Controller::ALL.iter().map(|&controller| cgroup(container, controller)).collect(),
        landlock: landlock_of(container),
        user_namespaces: UserNamespacesFound {
            max: number("/proc/sys/user/max_user_namespaces"),
            unprivileged_clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts_unprivileged: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
            trouble: container.no_user_namespaces.clone().map(Trouble::from),
        },
        seccomp: seccomp(container),
        kvm: kvm(&device(Path::new("/dev/kvm")), Path::new("/sys/module/kvm_pvm").is_dir()),
    }
}

/// A small file's text.
fn text(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// A small file's number.
fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}

/// What containers leave in the file systems that they show.
fn container_signs() -> Vec<String> {
    let mut signs: Vec<String> = ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"]
        .iter()
        .filter(|path| Path::new(path).exists())
        .map(|path| (*path).to_owned())
        .collect();
    let whole = |map: &str| map.split_whitespace().eq(["0", "0", "4294967295"]);
    if text("/proc/self/uid_map").is_some_and(|map| !whole(&map)) {
        signs.push("a user namespace".to_owned());
    }
    signs
}

fn cgroup(container: &Host, controller: Controller) -> CgroupFound {
    let (place, capability) = (container.cgroups.place(controller), capability(controller));
    let pending = match place {
        Err(Missing::Pending { way, .. }) => Some(way.to_string()),
        _ => None,
    };
    CgroupFound {
        controller: controller.name(),
        version: match place.map(|place| place.version) {
            Ok(Version::V1) => Some(1),
            Ok(Version::V2) => Some(2),
            Err(_) => pending.as_ref().map(|_| 2),
        },
        folder: place.ok().map(|place| place.folder.to_string_lossy().into_owned()),
        missing: place.err().filter(|_| pending.is_none()).map(ToString::to_string),
        a_run_first: pending,
        trouble: container.lacks(capability).map(Trouble::from),
    }
}

/// What a controller is needed for.
fn capability(controller: Controller) -> Capability {
    match controller {
        Controller::Cpu => Capability::Cpu,
        Controller::Memory => Capability::Memory,
        Controller::Pids => Capability::Pids,
    }
}

fn landlock_of(container: &Host) -> LandlockFound {
    let version = container.landlock.as_ref().ok().copied();
    let used = landlock::used(version.unwrap_or(0));
    LandlockFound {
        version,
        minimum: landlock::MINIMUM_ABI,
        used: (used.abi > 0).then_some(used.abi),
        rights: used.rights.to_vec(),
        scopes: used.scopes.to_vec(),
        trouble: container.lacks(Capability::Landlock).map(Trouble::from),
    }
}

fn seccomp(container: &Host) -> SeccompFound {
    let actions = text("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    SeccompFound {
        actions: actions.split_whitespace().map(str::to_owned).collect(),
        filtered: mode.map(|mode| mode.trim() != "0"),
        trouble: container.no_seccomp.clone().map(Trouble::from),
    }
}

/// The number of KVM's device, 10:232, as `stat` has it. Source: `Documentation/admin-guide/devices.txt`.
const KVM: u64 = 10 << 8 | 232;

/// What is at the path of KVM's device, with what the kernel said where it can't be opened.
fn device(path: &Path) -> (KvmDevice, Option<io::Error>) {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (KvmDevice::Absent, None),
        Err(error) => return (KvmDevice::Refused, Some(error)),
        Ok(found) if !found.file_type().is_char_device() || found.rdev() != KVM => {
            return (KvmDevice::NotKvm, None);
        }
        Ok(_) => {}
    }
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => (KvmDevice::Opens, None),
        Err(error) => (KvmDevice::Refused, Some(error)),
    }
}

/// Never says that KVM is usable: a device that opens says nothing about how fast a guest's kernel
/// runs, and only a measurement does.
fn kvm((device, error): &(KvmDevice, Option<io::Error>), pvm: bool) -> KvmFound {
    let (usable, found) = match device {
        KvmDevice::Absent => (Some(false), "there is no /dev/kvm".to_owned()),
        KvmDevice::NotKvm => (Some(false), "/dev/kvm is not KVM's device".to_owned()),
        KvmDevice::Opens => (if pvm { Some(false) } else { None }, "/dev/kvm opens".to_owned()),
        KvmDevice::Refused => {
            let error = error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
            (Some(false), format!("/dev/kvm can't be opened{error}"))
        }
    };
    let rest = match (pvm, usable) {
        (true, _) => {
            "; the module kvm_pvm is loaded, which is unusable for a stock guest kernel: it runs the guest \
             kernel's own code by emulation, about a thousand times too slow"
        }
        (false, None) => {
            "; not measured yet: usable is decided by a measurement that comes with the microVM backend"
        }
        (false, Some(_)) => "",
    };
    KvmFound { device: *device, pvm, usable, why: found + rest }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kvm_is_never_called_usable() {
        for device in [KvmDevice::Absent, KvmDevice::NotKvm, KvmDevice::Opens, KvmDevice::Refused] {
            for pvm in [false, true] {
                assert_ne!(kvm(&(device, None), pvm).usable, Some(true));
            }
        }
        assert_eq!(kvm(&(KvmDevice::Opens, None), false).usable, None);
        assert!(kvm(&(KvmDevice::Opens, None), true).why.contains("kvm_pvm"));
    }

    #[test]
    fn a_device_of_that_name_that_is_another_is_not_kvm() {
        assert_eq!(device(Path::new("/dev/null")).0, KvmDevice::NotKvm);
        assert_eq!(device(Path::new("/dev/no-such-device")).0, KvmDevice::Absent);
    }
}
