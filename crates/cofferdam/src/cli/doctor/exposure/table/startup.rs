//! Files and folders whose content is run later, by somebody with more rights than the code had.

use super::{Place, config, data, folder, home, machine, named, repository};
use crate::cli::doctor::exposure::findings::Kind;

/// A kind of start-up file.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli::doctor::exposure) struct StartUp {
    pub(in crate::cli::doctor::exposure) kind: Kind,
    pub(in crate::cli::doctor::exposure) places: &'static [Place],
}

const fn row(name: &'static str, what: &'static str, why: &'static str, places: &'static [Place]) -> StartUp {
    StartUp { kind: Kind::new(name, what, why), places }
}

/// Every kind.
#[rustfmt::skip]
pub(in crate::cli::doctor::exposure) const TABLE: &[StartUp] = &[
    row("shell-start", "shell start-up file", "runs in your next shell",
        &[home(".bashrc"), home(".bash_profile"), home(".bash_login"), home(".bash_logout"), home(".profile"), home(".zshrc"), home(".zshenv"), home(".zprofile"), home(".zlogin"), named("ZDOTDIR", ".zshrc"), named("ZDOTDIR", ".zshenv"), config("fish/config.fish"), home(".kshrc"), named("BASH_ENV", ""), named("ENV", "")]),
    row("autostart", "desktop start-up folder", "runs at your next login", &[config("autostart"), home(".xinitrc"), home(".xsession"), home(".xprofile"), config("plasma-workspace/env")]),
    row("user-service", "your systemd units", "run at your next login, and stay", &[config("systemd/user"), data("systemd/user")]),
    row("user-crontab", "crontab", "runs by the clock", &[machine("var/spool/cron/crontabs"), machine("var/spool/cron")]),
    row("git-hook", "Git hooks of this repository", "run at your next commit", &[repository("hooks")]),
    row("git-config", "Git configuration", "names programs that Git runs", &[home(".gitconfig"), config("git/config"), repository("config")]),
    row("ssh-access", "SSH logins to this account", "let somebody else log in as you", &[home(".ssh/authorized_keys"), home(".ssh/authorized_keys2")]),
    row("ssh-config", "SSH configuration", "names programs that ssh runs", &[home(".ssh/config"), home(".ssh/rc"), home(".ssh/environment")]),
    row("own-programs", "your own programs", "are found before the system's", &[home(".local/bin"), home("bin"), home(".cargo/bin"), home("go/bin"), home(".npm-global/bin")]),
    row("python-site", "Python packages of yours", "run with every Python that you start",
        &[home(".local/lib/python*/site-packages"), named("PYTHONUSERBASE", "lib/python*/site-packages"), named("PYTHONSTARTUP", ""), home(".pythonrc")]),
    row("tool-config", "tool configuration", "names programs that your tools run",
        &[home(".npmrc"), home(".cargo/config.toml"), home(".gdbinit"), home(".vimrc"), config("nvim/init.lua"), config("nvim/init.vim"), home(".emacs"), home(".emacs.d/init.el"), home(".tmux.conf"), config("direnv/direnvrc")]),
    row("agent-config", "settings of a coding agent", "name hooks and servers that your agent runs",
        &[home(".claude/settings.json"), home(".claude.json"), home(".codex/config.toml"), home(".gemini/settings.json"), home(".cursor/mcp.json"), folder(".claude/settings.json"), folder(".claude/settings.local.json"), folder(".mcp.json"), folder(".cursor/mcp.json"), folder(".vscode/mcp.json")]),
    row("project-tasks", "tasks of this project", "run when the project is opened or built", &[folder(".vscode/tasks.json"), folder(".vscode/settings.json"), folder(".envrc"), folder(".devcontainer/devcontainer.json"), folder(".idea/workspace.xml")]),
    row("system-cron", "the machine's crontabs", "run by the clock as root", &[machine("etc/cron.d"), machine("etc/crontab"), machine("etc/cron.hourly"), machine("etc/cron.daily")]),
    row("system-start", "the machine's start-up files", "run as root or in everybody's shell",
        &[machine("etc/profile"), machine("etc/profile.d"), machine("etc/bash.bashrc"), machine("etc/systemd/system"), machine("etc/init.d"), machine("etc/rc.local"), machine("etc/ld.so.preload"), machine("etc/ld.so.conf.d"), machine("etc/xdg/autostart"), machine("etc/udev/rules.d")]),
    row("system-accounts", "the machine's accounts and rights", "make a new root", &[machine("etc/passwd"), machine("etc/shadow"), machine("etc/sudoers"), machine("etc/sudoers.d"), machine("etc/pam.d")]),
];
