//! Loads a policy file and the files that it extends. Extending can only narrow.
//!
//! What the extended file grants is what it says and, where it says nothing, the default: a file
//! can't get more memory than the default by extending one that doesn't mention memory.

use std::path::Path;

use cofferdam_core::policy::{Layer, Limits, LimitsLayer, Profile, Widening};

use super::check::{self, Checked};
use super::error::{FileError, Source, Span};
use super::policy::{CredentialTable, PolicyFile};
use super::text::{self, Text, Unreadable};
use super::words::At;
use super::{HostEnvironment, Loaded, Rest};

/// How many files can stand in a chain above the first. Deep enough for an organisation, a team, a
/// project and a task.
const MOST_EXTENDED: usize = 8;

/// Reads a policy file that was named. `environment` has the values of variables that are passed.
pub(crate) fn load_policy(path: &Path, environment: &HostEnvironment<'_>) -> Result<Loaded, FileError> {
    load(path, text::read(path)?, environment, &mut vec![])
}

/// Reads the user's own policy file, which needn't be there. One that is there and can't be read
/// is an error: the operator meant it to hold.
pub(crate) fn load_users_policy(
    path: &Path,
    environment: &HostEnvironment<'_>,
) -> Result<Option<Loaded>, FileError> {
    match text::read(path) {
        Ok(text) => load(path, text, environment, &mut vec![]).map(Some),
        Err(unreadable) if unreadable.is_absent(path) => Ok(None),
        Err(unreadable) => Err(unreadable.into()),
    }
}

/// Loads a file that was read. `chain` has the files that extend it.
fn load(
    path: &Path,
    text: Text,
    environment: &HostEnvironment<'_>,
    chain: &mut Vec<(u64, u64)>,
) -> Result<Loaded, FileError> {
    let Text { text, source, identity } = text;
    let file = PolicyFile::parse(&text, &source)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let own = check::alone(&file, &source, folder, environment)?;
    let loaded = match &file.extends {
        None => own.loaded,
        Some(extends) => {
            chain.push(identity);
            let base = load_base(path, extends, &source, environment, chain)?;
            Narrowing { file: &file, source: &source, extends, job: false }.of(&base, &own)?
        }
    };
    check::references(&file, &loaded, &source)?;
    Ok(loaded)
}

fn load_base(
    path: &Path,
    extends: &At<String>,
    source: &Source,
    environment: &HostEnvironment<'_>,
    chain: &mut Vec<(u64, u64)>,
) -> Result<Loaded, FileError> {
    let refuse = |message: &str, label: &str, help: &str| source.error(&extends.span, message, label, help);
    if extends.value.is_empty() {
        return Err(refuse("`extends` names no file", "empty", "name a policy file, or remove the key"));
    }
    if chain.len() > MOST_EXTENDED {
        let message = format!("more than {MOST_EXTENDED} files extend each other");
        return Err(refuse(&message, "one too many", "put some of them together"));
    }
    let base = path.parent().unwrap_or(Path::new("")).join(&extends.value);
    let text = text::read(&base).map_err(|unreadable| {
        let Unreadable { message, help, cause } = unreadable;
        let message = cause.map_or(message.clone(), |cause| format!("{message}: {cause}"));
        refuse(&message, "extended here", &help)
    })?;
    if chain.contains(&text.identity) {
        let help = "remove `extends` from one of the files";
        return Err(refuse("the file extends itself", "leads back to a file before it", help));
    }
    load(&base, text, environment, chain)
}

/// What a file that leaves everything else out grants.
fn granted(base: &Layer) -> Layer {
    let said = &base.limits;
    let default = Limits::DEFAULT;
    let memory_bytes = said.memory_bytes.unwrap_or(default.memory_bytes);
    let limits = LimitsLayer {
        timeout: said.timeout.or(Some(default.timeout)),
        grace: said.grace.or(Some(default.grace)),
        memory_bytes: Some(memory_bytes),
        cpus: said.cpus.or(Some(default.cpus)),
        pids: said.pids.or(Some(default.pids)),
        disk_bytes: said.disk_bytes.or(Some(memory_bytes / 2)),
        files: said.files.or(Some(default.files)),
        output_bytes: said.output_bytes.or(default.output_bytes),
        bytes_out: said.bytes_out.or(Some(default.bytes_out)),
        requests: said.requests.or(Some(default.requests)),
        connections: said.connections.or(Some(default.connections)),
        hosts: said.hosts.or(Some(default.hosts)),
    };
    Layer { profile: base.profile.or(Some(Profile::Untrusted)), limits, ..base.clone() }
}

/// A file that extends another.
struct Narrowing<'a> {
    file: &'a PolicyFile,
    source: &'a Source,
    extends: &'a At<String>,
    /// Whether it is a job's policy rather than a file, and what it narrows the batch's.
    job: bool,
}

/// What a job may do: what its policy says, if that is no more than the batch grants.
///
/// What the operator accepted as missing, and what may be let out, holds for every job.
pub(crate) fn narrow_for_job(batch: &Loaded, file: &PolicyFile, source: &Source) -> Result<Layer, FileError> {
    let mut own = check::alone(file, source, Path::new("/"), &|_| None)?;
    own.loaded.layer.accept_gaps.clone_from(&batch.layer.accept_gaps);
    own.loaded.layer.files.keep.clone_from(&batch.layer.files.keep);
    let extends = At::from("the batch".to_owned());
    let loaded = Narrowing { file, source, extends: &extends, job: true }.of(batch, &own)?;
    check::references(file, &loaded, source)?;
    Ok(loaded.layer)
}

impl Narrowing<'_> {
    /// Both files as one, if this one grants no more than the base.
    fn of(&self, base: &Loaded, own: &Checked) -> Result<Loaded, FileError> {
        let granted = granted(&base.layer);
        self.refuse_wider_backend(&granted)?;
        let mine = &own.loaded.layer;
        let wider = |widening: Widening| self.widening(&widening, &base.layer, &own.passed_at);
        mine.narrows(&granted).map_err(wider)?;
        let mut layer = mine.narrows(&base.layer).map_err(wider)?;
        self.keep_empty_lists(&mut layer, mine);
        let credentials = self.credentials(&base.rest.credentials, &mut layer)?;
        let rest = self.rest(&base.rest, &own.loaded.rest, credentials)?;
        Ok(Loaded { layer, rest })
    }

    fn wider(&self, at: &Span, message: &str) -> FileError {
        let base = &self.extends.value;
        let help = if self.job {
            "ask for no more than the batch grants, or start the batch with more".to_owned()
        } else {
            format!("ask for no more than `{base}` grants, or don't extend it")
        };
        self.source.error(at, message, &format!("wider than `{base}`"), &help)
    }

    /// Where the base leaves the choice to its profile, only what that would choose is no wider.
    fn refuse_wider_backend(&self, granted: &Layer) -> Result<(), FileError> {
        let Some(At { value, span }) = &self.file.backend else { return Ok(()) };
        let profile = granted.profile.unwrap_or(Profile::Untrusted);
        match (value.0, granted.backend.flatten()) {
            (None, Some(backend)) => Err(self.wider(span, &format!("the backend is `{backend}` there"))),
            (Some(mine), None) if !profile.considers().contains(&mine) => {
                Err(self.wider(span, &format!("profile `{profile}` doesn't choose `{mine}` there")))
            }
            _ => Ok(()),
        }
    }

    fn widening(&self, widening: &Widening, base: &Layer, passed_at: &[Span]) -> FileError {
        let at = self.place(widening, base, passed_at).unwrap_or_else(|| self.extends.span.clone());
        let message = if self.job {
            format!("{} is more than the batch grants: {}", widening.key, widening.why)
        } else {
            widening.to_string()
        };
        self.wider(&at, &message)
    }

    /// Where the file says what is wider.
    fn place(&self, widening: &Widening, base: &Layer, passed_at: &[Span]) -> Option<Span> {
        let file = self.file;
        let limits = &file.limits;
        let index = widening.index.unwrap_or_default();
        match widening.key {
            "profile" => place(&file.profile),
            "backend" => place(&file.backend),
            "limits.timeout" => place(&limits.timeout),
            "limits.grace" => place(&limits.grace),
            "limits.memory" => place(&limits.memory),
            "limits.cpus" => place(&limits.cpus),
            "limits.pids" => place(&limits.pids),
            "limits.disk" => place(&limits.disk),
            "limits.files" => place(&limits.files),
            "limits.output" => place(&limits.output),
            "limits.bytes_out" => place(&limits.bytes_out),
            "limits.requests" => place(&limits.requests),
            "limits.connections" => place(&limits.connections),
            "limits.hosts" => place(&limits.hosts),
            "files.workspace" => place(&file.files.workspace),
            "files.inputs" => Some(file.files.inputs.as_ref()?.get(index)?.host.span.clone()),
            "files.hide" => Some(file.files.hide.get(index)?.span.clone()),
            "files.keep" => Some(file.files.keep.get(index)?.span.clone()),
            "accept_gaps" => {
                let gap = file.accept_gaps.iter().find(|gap| !base.accept_gaps.contains(&gap.value.0))?;
                Some(gap.span.clone())
            }
            "network.allow" => Some(file.network.allow.as_ref()?.get(index)?.host.span.clone()),
            "credential" => Some(file.credential.as_ref()?.get(index)?.name.span.clone()),
            "environment.pass" => passed_at.get(index).cloned(),
            _ => None,
        }
    }

    /// A list that is there and empty means none, where the core takes it for one left out.
    fn keep_empty_lists(&self, layer: &mut Layer, mine: &Layer) {
        if self.file.network.allow.is_some() {
            layer.network.clone_from(&mine.network);
        }
        if self.file.files.inputs.is_some() {
            layer.files.shown.clone_from(&mine.files.shown);
        }
        if self.file.credential.is_some() {
            layer.credentials.clone_from(&mine.credentials);
        }
        if self.file.environment.pass.is_some() {
            layer.environment.passed.clone_from(&mine.environment.passed);
        }
    }

    /// The credentials of both. Those of the base that this file says nothing about are kept as
    /// far as they are of use, and end with the run.
    fn credentials(
        &self,
        base: &[CredentialTable],
        layer: &mut Layer,
    ) -> Result<Vec<CredentialTable>, FileError> {
        if let Some(own) = &self.file.credential {
            own.iter().try_for_each(|credential| self.refuse_wider_credential(credential, base))?;
            return Ok(own.clone());
        }
        let used: Vec<_> =
            base.iter().filter(|credential| check::is_used(credential, &layer.network)).cloned().collect();
        let timeout = layer.limits.timeout.unwrap_or(Limits::DEFAULT.timeout);
        layer.credentials.retain(|rule| used.iter().any(|credential| credential.name.value.0 == rule.name));
        for rule in &mut layer.credentials {
            rule.ttl = rule.ttl.map(|ttl| ttl.min(timeout));
        }
        Ok(used)
    }

    /// A credential is repeated as it is in the base; only its lifetime and its uses may be fewer.
    fn refuse_wider_credential(
        &self,
        mine: &CredentialTable,
        base: &[CredentialTable],
    ) -> Result<(), FileError> {
        // That there is one of this name was checked before.
        let Some(theirs) = base.iter().find(|theirs| theirs.name == mine.name) else { return Ok(()) };
        let uses =
            |credential: &CredentialTable| credential.max_uses.as_ref().map_or(u64::MAX, |uses| uses.value.0);
        if uses(mine) > uses(theirs) {
            let at = mine.max_uses.as_ref().map_or(&mine.name.span, |uses| &uses.span);
            return Err(self.wider(at, "the credential may be used less often there"));
        }
        let repeated =
            CredentialTable { ttl: theirs.ttl.clone(), max_uses: theirs.max_uses.clone(), ..mine.clone() };
        if repeated != *theirs {
            let message = format!("the credential `{}` is another one there", mine.name.value.0);
            return Err(self.wider(&mine.name.span, &message));
        }
        Ok(())
    }

    fn rest(&self, base: &Rest, mine: &Rest, credentials: Vec<CredentialTable>) -> Result<Rest, FileError> {
        if let (Some(true), Some(At { value: false, span })) =
            (base.record_requests, &self.file.audit.requests)
        {
            return Err(self.wider(span, "requests are recorded there"));
        }
        Ok(Rest {
            credentials,
            denied_names: mine.denied_names.or(base.denied_names),
            record_requests: mine.record_requests.or(base.record_requests),
        })
    }
}

fn place<T>(at: &Option<At<T>>) -> Option<Span> {
    at.as_ref().map(|at| at.span.clone())
}
