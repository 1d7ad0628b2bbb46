//! The tables: what is looked for, where, how it is told from something harmless, and why it matters.
//! Each thing is declared once, in [`credentials`], [`sockets`] or [`startup`].

pub(super) mod credentials;
pub(super) mod sockets;
pub(super) mod startup;

/// Where a path begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// `$XDG_CACHE_HOME`, else `~/.cache`.
    Cache,
    /// `$XDG_CONFIG_HOME`, else `~/.config`.
    Config,
    /// `$XDG_DATA_HOME`, else `~/.local/share`.
    Data,
    /// The working directory.
    Folder,
    /// The home.
    Home,
    /// `/`: what is found there is the machine's, not the person's.
    Machine,
    /// `.git` of the repository that the working directory is in.
    Repository,
    /// `$XDG_RUNTIME_DIR`, else `/run/user/UID`.
    Runtime,
    /// The folder of tmux's sockets.
    Tmux,
    /// The paths in a variable.
    Variable(&'static str),
}

/// A path below a base. `*` stands for any part of one name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) base: Base,
    pub(super) pattern: &'static str,
}

const fn cache(pattern: &'static str) -> Place {
    Place { base: Base::Cache, pattern }
}

const fn config(pattern: &'static str) -> Place {
    Place { base: Base::Config, pattern }
}

const fn data(pattern: &'static str) -> Place {
    Place { base: Base::Data, pattern }
}

const fn folder(pattern: &'static str) -> Place {
    Place { base: Base::Folder, pattern }
}

const fn home(pattern: &'static str) -> Place {
    Place { base: Base::Home, pattern }
}

const fn machine(pattern: &'static str) -> Place {
    Place { base: Base::Machine, pattern }
}

const fn repository(pattern: &'static str) -> Place {
    Place { base: Base::Repository, pattern }
}

const fn runtime(pattern: &'static str) -> Place {
    Place { base: Base::Runtime, pattern }
}

const fn tmux(pattern: &'static str) -> Place {
    Place { base: Base::Tmux, pattern }
}

/// The file that a variable names, or with a pattern, what is below the folder that it names.
const fn named(variable: &'static str, pattern: &'static str) -> Place {
    Place { base: Base::Variable(variable), pattern }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_row_has_a_name_of_its_own_and_says_what_and_why_in_a_few_words() {
        let kinds = credentials::TABLE.iter().map(|row| row.kind);
        let kinds = kinds.chain(sockets::TABLE.iter().map(|row| row.kind));
        let kinds: Vec<_> = kinds.chain(startup::TABLE.iter().map(|row| row.kind)).collect();
        let names: BTreeSet<_> = kinds.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), kinds.len(), "two rows share a name");
        for kind in kinds {
            assert!(!kind.what.is_empty() && kind.what.len() <= 60, "{kind:?}");
            assert!(!kind.why.is_empty() && kind.why.len() <= 80, "{kind:?}");
        }
    }

    #[test]
    fn no_place_leads_up_or_starts_at_the_root_by_itself() {
        let places = credentials::TABLE.iter().flat_map(|row| row.places);
        let places = places.chain(sockets::TABLE.iter().flat_map(|row| row.places));
        for place in places.chain(startup::TABLE.iter().flat_map(|row| row.places)) {
            assert!(!place.pattern.starts_with('/') && !place.pattern.contains(".."), "{place:?}");
        }
    }
}
