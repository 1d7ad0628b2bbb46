//! What must be true among the values of a policy file.
//!
//! [`alone`] looks at one file by itself and turns it into a layer; [`references`] looks at it
//! together with what it extends. Paths in it are looked up on this host. Each refusal has its place.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use cofferdam_core::files::{Files, Shown, Workspace};
use cofferdam_core::policy::{
    CredentialRule, Environment, FilesLayer, Layer, Limits, LimitsLayer, NetworkRule, OWN_HOST, Protocol,
};
use cofferdam_core::request::Variable;

use super::error::{FileError, Source, Span};
use super::policy::{CredentialTable, FilesTable, InputTable, LimitsTable, PolicyFile, RuleTable};
use super::value::BadValue;
use super::words::{At, Misuse, Tls, Word};
use super::{HostEnvironment, Loaded, Rest};
use crate::places;

/// A file that is right by itself.
#[derive(Debug)]
pub(crate) struct Checked {
    /// What it says.
    pub(crate) loaded: Loaded,
    /// The places of the variables that are passed on and that the host has.
    pub(crate) passed_at: Vec<Span>,
}

/// Checks a file by itself. Paths in it are relative to `folder`.
pub(crate) fn alone(
    file: &PolicyFile,
    source: &Source,
    folder: &Path,
    environment: &HostEnvironment<'_>,
) -> Result<Checked, FileError> {
    refuse_zero(file, source)?;
    refuse_twice(&file.accept_gaps, source)?;
    refuse_twice(&file.require, source)?;
    refuse_contradiction(file, source)?;
    let rules = file.network.allow.as_deref().unwrap_or_default();
    refuse_twice(rules.iter().filter_map(|rule| rule.name.as_ref()), source)?;
    let network = rules.iter().map(|table| rule(table, source)).collect::<Result<_, _>>()?;
    let credentials = file.credential.clone().unwrap_or_default();
    refuse_twice(credentials.iter().map(|credential| &credential.name), source)?;
    refuse_shared_variables(file, &credentials, source)?;
    let (passed, passed_at) = passed(file, source, environment)?;
    let layer = Layer {
        profile: file.profile.as_ref().map(|profile| profile.value.0),
        backend: file.backend.as_ref().map(|backend| backend.value.0),
        limits: limits(&file.limits),
        environment: Environment { set: set(file, source)?, passed },
        files: files(&file.files, source, folder)?,
        network,
        credentials: credentials.iter().map(credential).collect(),
        accept_gaps: file.accept_gaps.iter().map(|gap| gap.value.0).collect(),
        require: file.require.iter().map(|required| required.value.0).collect(),
    };
    let rest = Rest {
        credentials,
        denied_names: file.dns.denied.as_ref().map(|denied| denied.value),
        record_requests: file.audit.requests.as_ref().map(|requests| requests.value),
    };
    Ok(Checked { loaded: Loaded { layer, rest }, passed_at })
}

/// Checks that rules and credentials of a file fit each other, and the deadline, when what the file
/// extends is there too. What is only there was checked with its own file.
pub(crate) fn references(file: &PolicyFile, loaded: &Loaded, source: &Source) -> Result<(), FileError> {
    for table in file.network.allow.as_deref().unwrap_or_default() {
        let Some(named) = &table.credential else { continue };
        let Some(found) = loaded.rest.credentials.iter().find(|known| known.name.value == named.value) else {
            let message = format!("no credential is called `{}`", named.value.0);
            let help = format!("add a [[credential]] with the name `{}`, or correct the name", named.value.0);
            return Err(source.error(&named.span, &message, "not a credential of this policy", &help));
        };
        refuse_injection_into_bytes(table, found, source)?;
    }
    let timeout = loaded.layer.limits.timeout.unwrap_or(Limits::DEFAULT.timeout);
    for table in file.credential.as_deref().unwrap_or_default() {
        if !is_used(table, &loaded.layer.network) {
            let message = format!("no rule uses the credential `{}`", table.name.value.0);
            let help = format!(
                "add `credential = \"{}\"` to the [[network.allow]] that it is for, or remove it",
                table.name.value.0
            );
            return Err(source.error(&table.name.span, &message, "used by no rule", &help));
        }
        if let Some(ttl) = &table.ttl
            && ttl.value.0 > timeout
        {
            let timeout = super::value::write_duration(timeout);
            let message = format!("the credential would outlive the run, which ends after {timeout}");
            let help = format!("write at most `{timeout}`, or set a longer `timeout` in [limits]");
            return Err(source.error(&ttl.span, &message, "longer than the timeout", &help));
        }
    }
    refuse_shadowed(file, &loaded.layer.network, source)?;
    refuse_dangling(file, loaded, source)
}

/// The first rule that matches decides: one with a credential behind one that has all of its requests without would give
/// it to none.
fn refuse_shadowed(file: &PolicyFile, rules: &[NetworkRule], source: &Source) -> Result<(), FileError> {
    for table in file.network.allow.as_deref().unwrap_or_default() {
        let Some(named) = &table.credential else { continue };
        let is_its = |rule: &NetworkRule| {
            rule.credential.as_ref() == Some(&named.value.0)
                && rule.host.to_string() == table.host.value.0.to_string()
        };
        let Some(at) = rules.iter().position(is_its) else { continue };
        let covers = |earlier: &NetworkRule| {
            // The first rule for a host and port says what is spoken there, too.
            let (credential, protocol) = (rules[at].credential.clone(), rules[at].protocol);
            let same = NetworkRule { credential, protocol, ..earlier.clone() };
            earlier.credential.is_none() && rules[at].within(&same)
        };
        if let Some(earlier) = rules[..at].iter().find(|earlier| covers(earlier)) {
            let message =
                format!("an earlier rule ({}) lets all of this out without the credential", earlier.label());
            let help = "put this rule before it, or take that one out";
            return Err(source.error(&table.host.span, &message, "never decides", help));
        }
    }
    Ok(())
}

/// Whether a rule names a credential, or the program gets the credential itself and can go
/// somewhere with it.
pub(crate) fn is_used(credential: &CredentialTable, rules: &[NetworkRule]) -> bool {
    let named = |rule: &NetworkRule| rule.credential.as_ref() == Some(&credential.name.value.0);
    rules.iter().any(named) || (!credential.deliver.is_empty() && !rules.is_empty())
}

/// A rule from the file that this one extends may name a credential that this one leaves out.
fn refuse_dangling(file: &PolicyFile, loaded: &Loaded, source: &Source) -> Result<(), FileError> {
    let known = |name: &String| loaded.rest.credentials.iter().any(|known| known.name.value.0 == *name);
    let named = loaded.layer.network.iter().filter_map(|rule| rule.credential.as_ref());
    let Some(missing) = named.into_iter().find(|name| !known(name)) else { return Ok(()) };
    let at = file.extends.as_ref().map_or(0..0, |extends| extends.span.clone());
    let message = format!("a rule there needs the credential `{missing}`, which this file leaves out");
    let help = "list that credential here too, or list the rules that this file keeps";
    Err(source.error(&at, &message, "the rule is there", help))
}

fn refuse_injection_into_bytes(
    table: &RuleTable,
    credential: &CredentialTable,
    source: &Source,
) -> Result<(), FileError> {
    let Some(protocol) = table.protocol.as_ref().filter(|protocol| protocol.value.0 == Protocol::Tcp) else {
        return Ok(());
    };
    let Some(inject) = &credential.inject else { return Ok(()) };
    let help = "use `deliver` instead of `inject`, or a protocol that has requests";
    let message = "a credential can't be injected into bytes that aren't HTTP";
    Err(source.error(&protocol.span, message, "no requests here", help).and(inject.span.clone(), "injected"))
}

/// The files that the program sees, as they are on this host.
fn files(table: &FilesTable, source: &Source, folder: &Path) -> Result<FilesLayer, FileError> {
    refuse_twice(&table.hide, source)?;
    refuse_twice(&table.keep, source)?;
    let workspace = table.workspace.as_ref().map(|At { value, span }| {
        let host = places::workspace(Path::new(value), folder);
        host.map(|host| Workspace { host, copy: false }).map_err(|error| source.bad_value(span, &error))
    });
    let inputs = table.inputs.as_deref().unwrap_or_default();
    let shown = inputs.iter().map(|table| input(table, source, folder)).collect::<Result<Vec<_>, _>>()?;
    refuse_one_place(inputs, &shown, source)?;
    Ok(FilesLayer {
        workspace: workspace.transpose()?,
        shown,
        hide: table.hide.iter().map(|pattern| pattern.value.0.clone()).collect(),
        keep: table.keep.iter().map(|pattern| pattern.value.0.clone()).collect(),
        python: None,
    })
}

fn input(table: &InputTable, source: &Source, folder: &Path) -> Result<Shown, FileError> {
    if let Some(At { value, span }) = &table.guest {
        places::guest_path(Path::new(value)).map_err(|error| source.bad_value(span, &error))?;
    }
    let guest = table.guest.as_ref().map(|guest| Path::new(&guest.value));
    places::input(Path::new(&table.host.value), guest, folder)
        .map_err(|error| source.bad_value(&table.host.span, &error))
}

/// Two inputs can't be in one place, nor one within another.
fn refuse_one_place(inputs: &[InputTable], shown: &[Shown], source: &Source) -> Result<(), FileError> {
    let place = |table: &InputTable| table.guest.as_ref().unwrap_or(&table.host).span.clone();
    for (index, table) in inputs.iter().enumerate() {
        for (before, earlier) in inputs[..index].iter().enumerate() {
            let both = vec![shown[before].clone(), shown[index].clone()];
            let mut pair = Files { shown: both, ..Files::default() };
            if let Err(error) = places::settle(&mut pair) {
                let error = source.error(&place(table), &error.why, "the second one", &error.help);
                return Err(error.and(place(earlier), "the first one"));
            }
        }
    }
    Ok(())
}

fn refuse_zero(file: &PolicyFile, source: &Source) -> Result<(), FileError> {
    let limits = &file.limits;
    let zero_time = |at: &Option<At<_>>| zero(at, |time: &super::words::Time| time.0.is_zero());
    let zero_size = |at: &Option<At<_>>| zero(at, |size: &super::words::Size| size.0 == 0);
    let mut found =
        zero_time(&limits.timeout).or(zero_size(&limits.memory)).or(zero(&limits.pids, |pids| pids.0 == 0));
    for credential in file.credential.as_deref().unwrap_or_default() {
        found = found.or(zero_time(&credential.ttl)).or(zero(&credential.max_uses, |uses| uses.0 == 0));
    }
    match found {
        Some(at) => {
            Err(source.error(&at, "nothing can run with zero of this", "zero", "write more than zero"))
        }
        None => Ok(()),
    }
}

fn zero<T>(at: &Option<At<T>>, is_zero: impl Fn(&T) -> bool) -> Option<Span> {
    at.as_ref().filter(|at| is_zero(&at.value)).map(|at| at.span.clone())
}

fn refuse_twice<'a, T: Word + 'a>(
    items: impl IntoIterator<Item = &'a At<T>>,
    source: &Source,
) -> Result<(), FileError> {
    let mut seen: BTreeMap<String, &Span> = BTreeMap::new();
    for item in items {
        let name = item.value.write().to_string();
        if let Some(first) = seen.get(&name) {
            return Err(twice(&name, first, &item.span, source));
        }
        seen.insert(name, &item.span);
    }
    Ok(())
}

fn twice(name: &str, first: &Span, second: &Span, source: &Source) -> FileError {
    let message = format!("`{name}` is there twice");
    let help = "remove one of the two, or give it another name";
    source.error(second, &message, "the second one", help).and(first.clone(), "the first one")
}

fn refuse_contradiction(file: &PolicyFile, source: &Source) -> Result<(), FileError> {
    for required in &file.require {
        if let Some(gap) = file.accept_gaps.iter().find(|gap| gap.value == required.value) {
            let message = format!("`{}` is both required and accepted as a gap", required.value.0);
            let error =
                source.error(&required.span, &message, "required", "remove it from one of the two lists");
            return Err(error.and(gap.span.clone(), "accepted as a gap"));
        }
    }
    Ok(())
}

/// Two credentials can't be in one variable, nor one where `set` puts something else.
fn refuse_shared_variables(
    file: &PolicyFile,
    credentials: &[CredentialTable],
    source: &Source,
) -> Result<(), FileError> {
    let surrogates = credentials.iter().filter_map(|credential| credential.surrogate_env.as_ref());
    let delivered = credentials.iter().flat_map(|credential| credential.deliver.keys());
    refuse_twice(file.environment.set.keys().chain(surrogates).chain(delivered), source)
}

fn set(file: &PolicyFile, source: &Source) -> Result<Vec<Variable>, FileError> {
    let variables = file.environment.set.iter().map(|(name, value)| {
        let variable = Variable::new(name.value.0.as_str(), value.value.0.as_str());
        variable.map_err(|error| bad_variable(&value.span, &error, source))
    });
    variables.collect()
}

/// The variables that are passed on and that the host has, with their places.
fn passed(
    file: &PolicyFile,
    source: &Source,
    environment: &HostEnvironment<'_>,
) -> Result<(Vec<Variable>, Vec<Span>), FileError> {
    let names = file.environment.pass.as_deref().unwrap_or_default();
    refuse_twice(names, source)?;
    let mut variables = vec![];
    let mut places = vec![];
    for name in names {
        let Some(value) = environment(&name.value.0) else { continue };
        let variable = Variable::new(name.value.0.as_str(), value.into_vec());
        variables.push(variable.map_err(|error| bad_variable(&name.span, &error, source))?);
        places.push(name.span.clone());
    }
    Ok((variables, places))
}

fn bad_variable(span: &Span, error: &dyn std::error::Error, source: &Source) -> FileError {
    source.bad_value(span, &BadValue::new(error.to_string(), "choose another variable or value"))
}

fn limits(table: &LimitsTable) -> LimitsLayer {
    LimitsLayer {
        timeout: table.timeout.as_ref().map(|at| at.value.0),
        grace: table.grace.as_ref().map(|at| at.value.0),
        memory_bytes: table.memory.as_ref().map(|at| at.value.0),
        cpus: table.cpus.as_ref().map(|at| at.value.0),
        pids: table.pids.as_ref().map(|at| at.value.0),
        disk_bytes: table.disk.as_ref().map(|at| at.value.0),
        files: table.files.as_ref().map(|at| at.value.0),
        output_bytes: table.output.as_ref().map(|at| at.value.0),
        bytes_out: table.bytes_out.as_ref().map(|at| at.value.0),
        requests: table.requests.as_ref().map(|at| at.value.0),
        connections: table.connections.as_ref().map(|at| at.value.0),
        hosts: table.hosts.as_ref().map(|at| at.value.0),
    }
}

fn credential(table: &CredentialTable) -> CredentialRule {
    CredentialRule {
        name: table.name.value.0.clone(),
        issuer: table.issuer.value.0.clone(),
        ttl: table.ttl.as_ref().map(|ttl| ttl.value.0),
        ends_on_misuse: table.on_misuse.as_ref().is_some_and(|misuse| misuse.value == Misuse::Terminate),
    }
}

fn rule(table: &RuleTable, source: &Source) -> Result<NetworkRule, FileError> {
    let protocol = protocol(table, source)?;
    refuse_empty("ports", "leave it out for the protocol's own port", table.ports.as_ref(), source)?;
    refuse_empty("methods", "leave it out to allow any method", table.methods.as_ref(), source)?;
    refuse_empty("paths", "leave it out to allow any path", table.paths.as_ref(), source)?;
    refuse_unjudged(table, protocol, source)?;
    refuse_misplaced_credential(table, protocol, source)?;
    refuse_vague_own_host(table, source)?;
    let ports = match (&table.ports, protocol) {
        (Some(ports), _) => ports.value.iter().map(|port| port.0).collect(),
        (None, Protocol::Http) => vec![80],
        (None, Protocol::Https | Protocol::TlsPassthrough) => vec![443],
        (None, Protocol::Tcp) => {
            let message = "a rule for TCP needs its ports";
            return Err(source.error(&table.host.span, message, "which port?", "add `ports = [5432]`"));
        }
    };
    Ok(NetworkRule {
        name: table.name.as_ref().map(|name| name.value.0.clone()),
        host: table.host.value.0.clone(),
        ports,
        protocol,
        methods: table
            .methods
            .as_ref()
            .map(|list| list.value.iter().map(|method| method.0.clone()).collect()),
        paths: table.paths.as_ref().map(|list| list.value.iter().map(|path| path.0.clone()).collect()),
        private: table.private.as_ref().is_some_and(|private| private.value),
        credential: table.credential.as_ref().map(|credential| credential.value.0.clone()),
    })
}

fn protocol(table: &RuleTable, source: &Source) -> Result<Protocol, FileError> {
    let protocol = table.protocol.as_ref();
    let spoken = protocol.map_or(Protocol::Https, |protocol| protocol.value.0);
    match &table.tls {
        None => Ok(spoken),
        Some(At { value: Tls::Passthrough, .. }) if spoken == Protocol::Https => Ok(Protocol::TlsPassthrough),
        Some(At { span, .. }) => {
            let message = "only TLS can be passed through";
            let error = source.error(span, message, "there is no TLS here", "remove `tls` or `protocol`");
            Err(protocol
                .map_or_else(Vec::new, |protocol| vec![protocol.span.clone()])
                .into_iter()
                .fold(error, |error, span| error.and(span, "the protocol")))
        }
    }
}

fn refuse_empty<T>(
    key: &str,
    help: &str,
    list: Option<&At<Vec<T>>>,
    source: &Source,
) -> Result<(), FileError> {
    match list {
        Some(At { value, span }) if value.is_empty() => {
            let message = format!("an empty list of `{key}` allows nothing");
            Err(source.error(span, &message, "empty", help))
        }
        _ => Ok(()),
    }
}

/// Methods and paths of bytes that aren't read can't be judged.
fn refuse_unjudged(table: &RuleTable, protocol: Protocol, source: &Source) -> Result<(), FileError> {
    if matches!(protocol, Protocol::Http | Protocol::Https) {
        return Ok(());
    }
    let methods = table.methods.as_ref().map(|list| &list.span);
    let Some(span) = methods.or(table.paths.as_ref().map(|list| &list.span)) else { return Ok(()) };
    let help = "remove them, or let the rule be HTTPS that is ended by the proxy";
    Err(source.error(span, "methods and paths can't be judged here", "these bytes are not read", help))
}

/// A credential goes to one host, in requests that we read.
fn refuse_misplaced_credential(
    table: &RuleTable,
    protocol: Protocol,
    source: &Source,
) -> Result<(), FileError> {
    let Some(credential) = &table.credential else { return Ok(()) };
    if table.host.value.0.to_string().starts_with("*.") {
        let message = "a credential can't go to a wildcard";
        let error =
            source.error(&table.host.span, message, "more than one host", "name the one host that it is for");
        return Err(error.and(credential.span.clone(), "this credential"));
    }
    if let Some(spoken) = table.protocol.as_ref().filter(|_| protocol == Protocol::Http) {
        let message = "a credential can't go where anybody can read it";
        let error =
            source.error(&spoken.span, message, "no TLS here", "remove `protocol`: it is HTTP over TLS then");
        return Err(error.and(credential.span.clone(), "this credential"));
    }
    match &table.tls {
        Some(tls) if protocol == Protocol::TlsPassthrough => {
            let message = "a credential can't go through TLS that isn't opened";
            let help = "remove `tls`, or the credential";
            let error = source.error(&tls.span, message, "passed through unopened", help);
            Err(error.and(credential.span.clone(), "this credential"))
        }
        _ => Ok(()),
    }
}

fn refuse_vague_own_host(table: &RuleTable, source: &Source) -> Result<(), FileError> {
    let private = table.private.as_ref().is_some_and(|private| private.value);
    if table.host.value.0.to_string() != OWN_HOST || (private && table.ports.is_some()) {
        return Ok(());
    }
    let message = "this machine's own services need `private` and a port";
    let help = "add `private = true` and `ports = [8080]` to this rule";
    Err(source.error(&table.host.span, message, "this machine", help))
}
