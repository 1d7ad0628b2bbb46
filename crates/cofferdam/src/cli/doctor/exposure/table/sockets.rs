//! Agents, which use a secret for whoever connects, and control sockets, which command something.

use super::{Place, cache, home, machine, named, runtime, tmux};
use crate::cli::doctor::exposure::findings::{Group, Kind};

/// A kind of socket.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli::doctor::exposure) struct Socket {
    pub(in crate::cli::doctor::exposure) group: Group,
    pub(in crate::cli::doctor::exposure) kind: Kind,
    pub(in crate::cli::doctor::exposure) places: &'static [Place],
}

const fn agent(
    name: &'static str,
    what: &'static str,
    why: &'static str,
    places: &'static [Place],
) -> Socket {
    Socket { group: Group::Agents, kind: Kind::new(name, what, why), places }
}

const fn control(
    name: &'static str,
    what: &'static str,
    why: &'static str,
    places: &'static [Place],
) -> Socket {
    Socket { group: Group::ControlSockets, kind: Kind::new(name, what, why), places }
}

/// Every kind. A socket is reported as the first kind that it is found as.
#[rustfmt::skip]
pub(in crate::cli::doctor::exposure) const TABLE: &[Socket] = &[
    agent("ssh-agent", "SSH agent", "logs in with your keys, without seeing them", &[named("SSH_AUTH_SOCK", "")]),
    agent("gpg-agent", "GnuPG agent", "signs, decrypts and logs in with your keys",
        &[home(".gnupg/S.gpg-agent*"), named("GNUPGHOME", "S.gpg-agent*"), runtime("gnupg/S.gpg-agent*"), runtime("gnupg/*/S.gpg-agent*")]),
    agent("keyring-agent", "desktop keyring", "hands out saved passwords while it is unlocked", &[runtime("keyring/*"), runtime("kwallet5.socket")]),
    agent("1password-agent", "1Password agent", "logs in with the keys of your vault", &[home(".1password/agent.sock")]),
    agent("session-bus", "session bus", "asks your desktop, its Secret Service among it", &[named("DBUS_SESSION_BUS_ADDRESS", ""), runtime("bus")]),
    agent("git-credential-cache", "Git credential cache", "hands out the Git passwords that it remembers", &[cache("git/credential/socket"), home(".git-credential-cache/socket")]),

    control("docker", "Docker", "starts a container with the whole host in it: root",
        &[named("DOCKER_HOST", ""), runtime("docker.sock"), home(".docker/run/docker.sock"), home(".docker/desktop/docker.sock"), home(".colima/*/docker.sock"), machine("run/docker.sock"), machine("var/run/docker.sock")]),
    control("containerd", "containerd", "starts a container with the whole host in it: root",
        &[machine("run/containerd/containerd.sock"), machine("run/k3s/containerd/containerd.sock"), runtime("containerd/containerd.sock"), runtime("containerd-rootless/api.sock")]),
    control("buildkit", "BuildKit", "builds with whatever the host has", &[named("BUILDKIT_HOST", ""), machine("run/buildkit/buildkitd.sock"), runtime("buildkit/buildkitd.sock")]),
    control("podman", "Podman", "starts containers as the user that it runs as", &[named("CONTAINER_HOST", ""), runtime("podman/podman.sock"), machine("run/podman/podman.sock")]),
    control("cri-o", "CRI-O", "starts a container with the whole host in it: root", &[machine("run/crio/crio.sock")]),
    control("lxd", "LXD or Incus", "starts a container with the whole host in it: root",
        &[machine("var/lib/lxd/unix.socket"), machine("var/snap/lxd/common/lxd/unix.socket"), machine("var/lib/incus/unix.socket"), machine("run/incus/unix.socket")]),
    control("libvirt", "libvirt", "starts machines with the host's disks",
        &[machine("run/libvirt/libvirt-sock"), machine("run/libvirt/virtqemud-sock"), runtime("libvirt/libvirt-sock"), runtime("libvirt/virtqemud-sock")]),
    control("systemd", "systemd", "starts services, outside of any limit", &[runtime("systemd/private"), machine("run/systemd/private")]),
    control("tailscale", "Tailscale", "shows and changes the private network", &[machine("run/tailscale/tailscaled.sock")]),
    control("tmux", "tmux", "types into your other terminals", &[named("TMUX", ""), tmux("*")]),
    control("screen", "screen", "types into your other terminals", &[named("SCREENDIR", "*"), home(".screen/*"), machine("run/screen/S-*/*")]),
    control("x11", "X11 display", "sees your screen and types on your keyboard", &[machine("tmp/.X11-unix/X*")]),
    control("wayland", "Wayland display", "opens windows in your session", &[named("WAYLAND_DISPLAY", ""), runtime("wayland-*")]),
    control("editor", "editor", "runs commands in your editor",
        &[named("VSCODE_GIT_IPC_HANDLE", ""), runtime("vscode-*.sock"), named("NVIM", ""), named("NVIM_LISTEN_ADDRESS", ""), runtime("nvim.*.0"), runtime("emacs/server")]),
    control("terminal", "terminal or window manager", "opens windows and types into them",
        &[named("KITTY_LISTEN_ON", ""), named("WEZTERM_UNIX_SOCKET", ""), named("SWAYSOCK", ""), named("I3SOCK", ""), named("HYPRLAND_SOCKET", "")]),
];
