//! What keeps a host that has user namespaces from starting a container all the same: settings of
//! distributions, and outer containers. Each with its reason and its fix.
//!
//! Pure over text, or over a `/proc` that is given.

use std::fs;
use std::path::Path;

/// A reason, and what to do about it.
pub(super) type Hindrance = (String, String);

/// What keeps a user who isn't root from making user namespaces that are of use.
pub(super) fn for_ordinary_users(proc: &Path, program: &Path) -> Option<Hindrance> {
    let text = |file: &str| Some(fs::read_to_string(proc.join(file)).ok()?.trim().to_owned());
    let number = |file: &str| text(file).and_then(|text| text.parse().ok());
    let label = || text("self/attr/apparmor/current").or_else(|| text("self/attr/current"));
    switched_off(number("sys/kernel/unprivileged_userns_clone")).or_else(|| {
        let restricts = number("sys/kernel/apparmor_restrict_unprivileged_userns");
        restricted_by_apparmor(restricts, label().as_deref(), program)
    })
}

/// Debian's own switch: 0 means that only root makes user namespaces.
fn switched_off(unprivileged_userns_clone: Option<u32>) -> Option<Hindrance> {
    (unprivileged_userns_clone == Some(0)).then(|| {
        (
            "only root may make user namespaces here (kernel.unprivileged_userns_clone is 0)".into(),
            "sysctl -w kernel.unprivileged_userns_clone=1, or run it as root".into(),
        )
    })
}

/// AppArmor leaves a user namespace without capabilities unless a profile of the program's allows them.
/// Under any profile of its own, what that profile says is seen at the start.
fn restricted_by_apparmor(restricts: Option<u32>, label: Option<&str>, program: &Path) -> Option<Hindrance> {
    if restricts != Some(1) || label != Some("unconfined") {
        return None;
    }
    let why = "AppArmor leaves user namespaces of unconfined programs without capabilities \
               (kernel.apparmor_restrict_unprivileged_userns is 1)";
    let fix = format!(
        "give this program a profile: write `abi <abi/4.0>, profile cofferdam \"{}\" flags=(unconfined) {{ \
         userns, }}` to /etc/apparmor.d/cofferdam and load it with `apparmor_parser -r \
         /etc/apparmor.d/cofferdam`; or sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; or run it \
         as root",
        program.display()
    );
    Some((why.to_owned(), fix))
}

/// Folders of `/proc` that are there to be mounted on, and empty for ever: a mount on one of them hides
/// nothing. Source: `proc_create_mount_point` and `register_sysctl_mount_point` in the kernel.
const MOUNT_POINTS: [&str; 3] = ["fs/nfsd", "openprom", "sys/fs/binfmt_misc"];

/// Why a `/proc` of a container's own can't be mounted, from the text of mountinfo.
///
/// The kernel gives a user namespace a new proc only if its makers see one whole: mounted from its
/// root, with nothing mounted over a part of it. That holds for root too. Source:
/// `mount_too_revealing` and `mnt_already_visible` in the kernel's `fs/namespace.c`.
pub(super) fn masked_proc(mountinfo: &str) -> Option<Hindrance> {
    let mounts: Vec<_> = mountinfo.lines().filter_map(Mount::parse).collect();
    let mut over = None;
    for proc in mounts.iter().filter(|mount| mount.is_proc && mount.root == "/") {
        match mounts.iter().find(|mount| mount.parent == proc.id && !is_made_for_that(mount, proc)) {
            None => return None,
            Some(mask) => over = over.or(Some(mask.target)),
        }
    }
    // Where no proc is to be seen at all, nothing can be said from this text.
    let over = over?;
    Some((
        format!(
            "a part of /proc is hidden here ({over} is mounted over), so no container gets a /proc of its own"
        ),
        "start the outer container with all of /proc: docker and podman `--security-opt \
         systempaths=unmasked`, Kubernetes `procMount: Unmasked`, or privileged; on a host itself, umount \
         what is mounted there"
            .into(),
    ))
}

/// Whether a mount is on one of the folders that are there for it.
fn is_made_for_that(mount: &Mount<'_>, proc: &Mount<'_>) -> bool {
    let below = mount.target.strip_prefix(proc.target).map(|below| below.trim_start_matches('/'));
    below.is_some_and(|below| MOUNT_POINTS.contains(&below))
}

/// One line of mountinfo.
struct Mount<'a> {
    id: &'a str,
    parent: &'a str,
    root: &'a str,
    target: &'a str,
    is_proc: bool,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (id, parent, _device) = (fields.next()?, fields.next()?, fields.next()?);
        let (root, target) = (fields.next()?, fields.next()?);
        Some(Mount { id, parent, root, target, is_proc: system.split(' ').next() == Some("proc") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:28 / /proc/sys/fs/binfmt_misc rw,relatime - autofs systemd-1 rw
";

    #[test]
    fn a_proc_with_nothing_but_mounts_made_for_it_is_whole() {
        assert_eq!(masked_proc(WHOLE), None);
        assert_eq!(masked_proc(""), None, "nothing is claimed of a host that shows nothing");
    }

    #[test]
    fn each_way_in_which_runtimes_hide_a_part_of_proc_is_seen() {
        for mask in [
            "40 22 0:21 /bus /proc/bus ro,relatime - proc proc rw",
            "41 22 0:40 / /proc/scsi ro,relatime - tmpfs tmpfs ro",
            "42 22 0:5 /null /proc/kcore rw,nosuid - devtmpfs udev rw",
            "43 22 0:41 / /proc rw - tmpfs tmpfs rw",
        ] {
            let (why, fix) = masked_proc(&format!("{WHOLE}{mask}\n")).unwrap();
            let target = mask.split(' ').nth(4).unwrap();
            assert!(why.contains(&format!("({target} is mounted over)")), "{why}");
            assert!(fix.contains("systempaths=unmasked") && fix.contains("procMount"), "{fix}");
        }
    }

    #[test]
    fn one_proc_that_is_whole_is_enough() {
        let masked = format!("{WHOLE}41 22 0:40 / /proc/scsi ro - tmpfs tmpfs ro\n");
        assert_eq!(masked_proc(&format!("{masked}50 27 0:21 / /mnt rw - proc proc rw\n")), None);
        assert!(masked_proc(&format!("{masked}50 27 0:21 /sys /mnt rw - proc proc rw\n")).is_some());
    }

    /// A `/proc` with these files.
    fn proc_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = proc.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        proc
    }

    fn ordinary(files: &[(&str, &str)]) -> Option<Hindrance> {
        for_ordinary_users(proc_with(files).path(), Path::new("/opt/cofferdam"))
    }

    const RESTRICTS: (&str, &str) = ("sys/kernel/apparmor_restrict_unprivileged_userns", "1\n");

    #[test]
    fn apparmor_hinders_what_has_no_profile_and_the_fix_has_one() {
        for file in ["self/attr/apparmor/current", "self/attr/current"] {
            let (why, fix) = ordinary(&[RESTRICTS, (file, "unconfined\n")]).unwrap();
            assert!(why.contains("kernel.apparmor_restrict_unprivileged_userns is 1"), "{why}");
            assert!(fix.contains("profile cofferdam \"/opt/cofferdam\"") && fix.contains("userns,"), "{fix}");
            assert!(fix.contains("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"), "{fix}");
        }
    }

    #[test]
    fn a_profile_of_our_own_and_a_switch_that_is_off_hinder_nothing() {
        let label = "self/attr/apparmor/current";
        assert_eq!(ordinary(&[RESTRICTS, (label, "cofferdam (unconfined)\n")]), None);
        let off = (RESTRICTS.0, "0\n");
        assert_eq!(ordinary(&[off, (label, "unconfined\n")]), None);
        assert_eq!(ordinary(&[]), None);
    }

    #[test]
    fn debians_switch_is_named() {
        let file = "sys/kernel/unprivileged_userns_clone";
        assert!(ordinary(&[(file, "0\n")]).unwrap().1.contains("kernel.unprivileged_userns_clone=1"));
        assert_eq!(ordinary(&[(file, "1\n")]), None);
    }
}
