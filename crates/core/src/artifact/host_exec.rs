//! What a tool of the host would later run or obey without anybody asking for it.
//!
//! One table, a line and a reason for each. A path is matched component by component, at any depth,
//! without regard to case; what lies below a match matches too. Not in it is what a person plainly
//! asks a program to write: source files, build files, package manifests, workflows of a forge.

use super::name::fold;
use crate::weaken::{self, Control};

/// Rules in the form of paths: `*` stands for any letters of one component, `**` for any number of
/// components.
const RULES: &[(&str, &str)] = &[
    // Version control.
    (".git/hooks", "git runs these"),
    (".git/config", "it names programs that git runs: pagers, filters, monitors"),
    (".git/config.worktree", "as .git/config"),
    (".git/commondir", "it moves .git/config elsewhere"),
    (".git/modules/**/hooks", "hooks of a submodule"),
    (".git/modules/**/config", "settings of a submodule"),
    (".git/modules/**/config.worktree", "settings of a submodule"),
    (".git/modules/**/commondir", "it moves a submodule's settings elsewhere"),
    (".git/worktrees", "it moves settings and hooks of another working tree"),
    (".git/info/attributes", "it chooses among filters, where no review looks"),
    (".git/objects/info/alternates", "it makes git read another repository"),
    (".git/rebase-merge", "its list of steps holds commands that a rebase runs when it goes on"),
    (".git/rebase-apply", "as .git/rebase-merge"),
    (".git/sequencer", "as .git/rebase-merge"),
    (".gitmodules", "it says where git fetches more code from"),
    (".gitconfig", "git's settings of a user"),
    (".config/git", "git's settings of a user"),
    ("*.git/hooks", "hooks of a bare repository"),
    ("*.git/config", "settings of a bare repository"),
    (".githooks", "a usual folder for hooks that are switched on by a setting"),
    (".hg/hgrc", "it names hooks that Mercurial runs"),
    (".jj/repo/config.toml", "it names programs that Jujutsu runs"),
    // Hooks that tools install.
    (".husky", "hooks"),
    (".hg/hgrc-not-shared", "as .hg/hgrc"),
    (".hg/sharedpath", "it moves .hg elsewhere"),
    (".sl/config", "it names hooks that Sapling runs"),
    ("_darcs/prefs/defaults", "it names hooks that Darcs runs"),
    (".lefthook*", "hooks"),
    ("lefthook.json", "hooks"),
    ("lefthook.toml", "hooks"),
    ("lefthook.y*ml", "hooks"),
    ("lefthook-local.*", "hooks"),
    (".overcommit.yml", "hooks"),
    (".pre-commit-config.y*ml", "hooks"),
    // Editors.
    (".bsp", "a build server that an editor starts"),
    ("buildserver.json", "as .bsp"),
    ("hie.yaml", "commands that a language server runs"),
    (".flake8", "plug-ins of a checker that editors start"),
    (".formatter.exs", "code that a formatter runs"),
    (".pylintrc", "plug-ins of a checker that editors start"),
    (".rubocop.yml", "code that a checker loads"),
    ("mypy.ini", "plug-ins of a checker that editors start"),
    (".emacs*", "code that Emacs evaluates"),
    (".config/nvim", "code that Neovim runs"),
    (".devcontainer", "commands that an editor runs on the host when it opens the folder"),
    (".devcontainer.json", "as .devcontainer"),
    (".dir-locals*.el", "code that Emacs evaluates"),
    (".exrc", "commands of vi"),
    (".fleet", "tasks and interpreters"),
    (".gvimrc", "commands of vim"),
    (".helix", "language servers to start"),
    (".idea", "tasks, interpreters and external tools"),
    (".lvimrc", "commands of vim"),
    (".nvim.lua", "code that Neovim runs"),
    (".nvimrc", "commands of Neovim"),
    (".vim", "plugins of vim"),
    (".vimrc", "commands of vim"),
    (".vs", "tasks and start-up settings"),
    (".vscode", "tasks, interpreters and terminal profiles"),
    (".ycm_extra_conf.py", "code that a completer runs"),
    (".zed", "tasks and language servers"),
    ("*.code-workspace", "as .vscode"),
    ("*.sublime-project", "build commands"),
    // Agents: what they may do, which servers they start, what they are told.
    (".agents", "settings of an agent"),
    (".aider*", "settings of an agent"),
    (".amazonq", "settings of an agent"),
    (".claude", "settings and hooks of an agent"),
    (".claude.json", "settings of an agent"),
    (".cline*", "settings of an agent"),
    (".codex", "settings of an agent"),
    (".continue", "settings of an agent"),
    (".continuerc.json", "settings of an agent"),
    (".cursor", "settings of an agent"),
    (".cursorrules", "what an agent is told"),
    (".gemini", "settings of an agent"),
    (".github/copilot*", "what an agent is told"),
    (".goose*", "settings of an agent"),
    (".junie", "settings of an agent"),
    (".kilocode", "settings of an agent"),
    (".kiro", "settings and hooks of an agent"),
    (".mcp.json", "servers that an agent starts"),
    ("mcp.json", "servers that an agent starts"),
    (".opencode", "settings of an agent"),
    ("opencode.json*", "settings of an agent"),
    (".qwen", "settings of an agent"),
    (".roo*", "settings of an agent"),
    (".windsurf*", "settings of an agent"),
    // Shells, and what they run when they enter a folder.
    (".autoenv*", "commands that a shell runs when it enters the folder"),
    (".bash_aliases", "commands that a shell runs when it starts"),
    (".bash_login", "commands that a shell runs when it starts"),
    (".bash_logout", "commands that a shell runs when it ends"),
    (".bash_profile", "commands that a shell runs when it starts"),
    (".bashrc", "commands that a shell runs when it starts"),
    (".config/autostart", "programs that a desktop starts"),
    (".config/fish", "commands that a shell runs when it starts"),
    (".config/mise", "as mise.toml"),
    (".config/systemd", "services that a session starts"),
    (".direnv", "commands that a shell runs when it enters the folder"),
    (".env", "shells, debuggers and servers load it; your own is hidden inside, and this would replace it"),
    (".envrc", "commands that a shell runs when it enters the folder"),
    (".inputrc", "keys that type commands"),
    (".mise", "as mise.toml"),
    (".mise.*toml", "as mise.toml"),
    ("mise.*toml", "tools, variables and commands for when a shell enters the folder"),
    (".profile", "commands that a shell runs when it starts"),
    (".ssh", "keys, and commands that a login runs"),
    (".tool-versions", "it can name a folder that programs are started from"),
    (".zlogin", "commands that a shell runs when it starts"),
    (".zlogout", "commands that a shell runs when it ends"),
    (".zprofile", "commands that a shell runs when it starts"),
    (".zshenv", "commands that a shell runs when it starts"),
    (".zshrc", "commands that a shell runs when it starts"),
    // Build tools and package managers: settings beside what a project says of itself.
    (".bazelrc", "programs and options of every build"),
    (".bazeliskrc", "which program a build starts"),
    ("tools/bazel", "a wrapper that is started in the build tool's place"),
    (".bundle", "settings of a package manager"),
    (".cargo/config*", "compilers, linkers and runners"),
    (".gemrc", "settings of a package manager"),
    (".mvn", "extensions and options of every build"),
    (".npmrc", "registries, scripts and shells of a package manager"),
    (".pnpmfile.*", "code that a package manager runs"),
    (".sbtopts", "options of every build"),
    (".terraform", "programs that are started as plug-ins"),
    (".terraformrc", "programs that are started as plug-ins"),
    (".yarn", "the program that is started as the package manager, and its plug-ins"),
    (".yarnrc*", "registries, plug-ins and which program is the package manager"),
    ("bunfig.toml", "code that is loaded before every program"),
    // Interpreters and debuggers.
    (".erlang", "code that a shell runs when it starts here"),
    (".gdbinit", "commands that a debugger runs when it starts here"),
    (".ghci", "commands that an interpreter runs when it starts here"),
    (".iex.exs", "code that a shell runs when it starts here"),
    (".irbrc", "code that a shell runs when it starts here"),
    (".lldbinit", "commands that a debugger runs when it starts here"),
    (".ocamlinit", "code that an interpreter runs when it starts here"),
    (".octaverc", "code that an interpreter runs when it starts here"),
    (".pdbrc", "commands that a debugger runs when it starts here"),
    (".pryrc", "code that a shell runs when it starts here"),
    (".rprofile", "code that R runs when it starts here"),
    (".renviron", "variables of R"),
    (".venv/bin", "editors start an interpreter that they find here"),
    ("venv/bin", "editors start an interpreter that they find here"),
    ("ipython_config.py", "code that a shell runs when it starts here"),
    ("jupyter_*config.json", "settings of a notebook server that starts here"),
    ("jupyter_*config.py", "code that a notebook server runs when it starts here"),
    ("pyvenv.cfg", "it says which interpreter an environment starts, which editors do by themselves"),
    ("bin/activate*", "a shell sources it"),
    ("__pycache__", "Python runs what is compiled there in place of the source"),
    ("*.pyc", "Python runs it in place of a source"),
    ("sitecustomize.py", "code that Python runs at every start"),
    ("usercustomize.py", "code that Python runs at every start"),
    // Elsewhere these are weights of a model.
    ("site-packages/*.pth", "code that Python runs at every start"),
    ("dist-packages/*.pth", "code that Python runs at every start"),
    // Tool chains, and settings that start programs.
    ("rust-toolchain", "it says which compiler is started"),
    ("rust-toolchain.toml", "as rust-toolchain"),
    (".pnp.cjs", "code that Node's package manager loads"),
    (".rdata", "code that R runs when it starts"),
    (".perldb", "code that Perl's debugger runs"),
    (".valgrindrc", "options of a tool"),
    (".jvmopts", "options of Java"),
    ("ansible.cfg", "plug-ins and modules of Ansible"),
    (".cshrc", "commands of a shell"),
    (".tcshrc", "commands of a shell"),
    (".kshrc", "commands of a shell"),
    (".aws/config", "it names programs that give credentials"),
    (".kube/config", "as .aws/config"),
    (".docker/config.json", "as .aws/config"),
    (".config/environment.d", "variables of a session"),
    (".local/bin", "programs on the path"),
    // What agents take for their orders.
    ("agents.md", "orders for agents"),
    ("claude.md", "orders for agents"),
    ("gemini.md", "orders for agents"),
    (".augment-guidelines", "orders for agents"),
    (".crush.json", "servers and commands of an agent"),
    (".openhands", "commands of an agent"),
    (".rules", "orders for agents"),
    (".trae", "settings of an agent"),
];

/// How far a path matches a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    /// Not at all.
    None,
    /// It is a folder below which a rule may match, somewhere.
    Above,
    /// It is the folder that a rule goes through: a file in its place (`.git`) redirects it.
    Through,
    /// It is what a rule names, or lies below it.
    Whole,
}

/// How far the path of an entry matches any rule.
pub(super) fn of(path: &str) -> Match {
    if weaken::is_off(Control::HostExec) {
        return Match::None;
    }
    let folded: Vec<String> = path.split('/').map(fold).collect();
    let parts: Vec<&str> = folded.iter().map(String::as_str).collect();
    let starts = |rule: &str| (0..parts.len()).map(|at| at_start(rule, &parts[at..])).max();
    RULES.iter().filter_map(|(rule, _)| starts(rule)).max().unwrap_or(Match::None)
}

/// Whether a file at a path makes the folder around it what git takes for a repository whose settings and
/// hooks it obeys when it is called in it. Outside of `.git` that is a `HEAD`: without that one file it is
/// a folder like any other, whatever else is told of it before or after. Below `.git` a `HEAD` says what is
/// checked out, and is an ordinary result; there it is what a repository is set up with, at any depth,
/// since every folder can be made one.
pub(super) fn makes_a_repository(path: &str) -> bool {
    let folded: Vec<String> = path.split('/').map(fold).collect();
    let Some((last, above)) = folded.split_last() else { return false };
    match above.iter().position(|part| part == ".git") {
        None => last == "head",
        Some(at) => {
            let settings = ["commondir", "config", "config.worktree", "hooks"];
            settings.contains(&last.as_str()) || above[at..].iter().any(|part| part == "hooks")
        }
    }
}

/// How far a path matches a rule from its own start on.
fn at_start(rule: &str, path: &[&str]) -> Match {
    let (first, rest) = match rule.split_once('/') {
        Some((first, rest)) => (first, Some(rest)),
        None => (rule, None),
    };
    if first == "**" && !path.is_empty() {
        let rest = rest.unwrap_or_default();
        let ends = (0..path.len()).map(|at| at_start(rest, &path[at..]));
        return if ends.max() == Some(Match::Whole) { Match::Whole } else { Match::Above };
    }
    match (path.split_first(), rest) {
        (None, _) => Match::Through,
        (Some((name, _)), _) if !component(first, name) => Match::None,
        (Some(_), None) => Match::Whole,
        (Some((_, below)), Some(rest)) => at_start(rest, below),
    }
}

/// Whether a component matches a rule's, which has at most one `*`.
fn component(rule: &str, name: &str) -> bool {
    match rule.split_once('*') {
        None => rule == name,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_would_run_is_known_at_any_depth_and_in_any_case() {
        for path in [
            ".git/hooks/pre-commit",
            "a/b/.GIT/Hooks/x",
            ".git/config",
            ".git/modules/a/b/hooks/post-checkout",
            ".git/modules/x/config",
            ".git/worktrees/w/gitdir",
            ".git/rebase-merge/git-rebase-todo",
            "mirror.git/config",
            ".vſcode/tasks.json",
            ".g\u{200d}it/config",
            "sub/.vscode/tasks.json",
            ".envrc",
            "x.code-workspace",
            ".claude/settings.json",
            ".mcp.json",
            ".cargo/config.toml",
            ".cargo/config",
            ".yarn/releases/yarn.cjs",
            ".pre-commit-config.yaml",
            ".Rprofile",
            ".github/copilot-instructions.md",
            ".venv/lib/python3.12/site-packages/x.pth",
        ] {
            assert_eq!(of(path), Match::Whole, "{path}");
        }
    }

    #[test]
    fn what_people_ask_for_is_not_in_the_table() {
        for path in [
            "main.py",
            "Makefile",
            "package.json",
            "build.rs",
            ".github/workflows/ci.yml",
            ".gitignore",
            ".gitattributes",
            ".git/index",
            ".git/HEAD",
            ".git/objects/ab/cdef",
            ".git/refs/heads/main",
            ".git/logs/HEAD",
            "model.pth",
            "config",
            "src/config/mod.rs",
            "hooks/useThing.ts",
            "header",
            ".env.example",
            "src/cmd/head/main.go",
            ".cargo/bin/x",
            "README.md",
        ] {
            assert_eq!(of(path), Match::None, "{path}");
        }
    }

    #[test]
    fn what_a_rule_goes_through_can_be_neither_file_nor_link() {
        for path in [".git", "a/.git", ".cargo", ".git/modules"] {
            assert_eq!(of(path), Match::Through, "{path}");
        }
        assert!(makes_a_repository("HEAD") && makes_a_repository("a/head"));
        assert!(!makes_a_repository(".git/HEAD") && !makes_a_repository("a/HEAD/b"));
        for path in [".git/x/config", "a/.git/refs/x/commondir", ".git/x/hooks", ".Git/x/Hooks/post-checkout"]
        {
            assert!(makes_a_repository(path), "{path}");
        }
        assert!(!makes_a_repository(".git/refs/remotes/origin/HEAD") && !makes_a_repository("config"));
        assert_eq!(of(".git/modules/x"), Match::Above);
        assert_eq!(of(".git/modules/x/objects/y"), Match::Above);
    }

    #[test]
    fn every_rule_can_match_and_says_why() {
        for (rule, why) in RULES {
            let path = rule.replace("**", "x").replace('*', "");
            assert_eq!(of(&path), Match::Whole, "{rule}");
            assert!(!why.is_empty() && *rule == fold(rule), "{rule}");
            assert!(rule.split('/').all(|part| part == "**" || part.matches('*').count() <= 1), "{rule}");
        }
    }
}
