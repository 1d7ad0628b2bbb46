//! Turns a resolved policy back into a policy file that says the same.

use std::collections::BTreeMap;

use std::path::Path;

use cofferdam_core::files::{Files, Pattern, Shown};
use cofferdam_core::policy::{CredentialRule, Limits, NetworkRule, OWN_HOST, Policy, Protocol};
use cofferdam_core::request::Variable;

use serde::Serialize;

use super::Rest;
use super::policy::{
    AuditTable, CredentialTable, DnsTable, EnvironmentTable, FilesTable, InputTable, LimitsTable,
    NetworkTable, PolicyFile, RuleTable,
};
use super::value::BadValue;
use super::words::{
    At, BackendChoice, CapabilityName, Cores, Count, FilePattern, Host, Method, Misuse, Name, PassedName,
    PathPattern, Pids, Port, ProfileName, ProtocolName, Size, Time, Tls, VariableName, VariableValue,
    Version,
};

impl PolicyFile {
    /// The file that says what a policy says. Only what has a default of its own is left out.
    ///
    /// Values that were passed in from the host appear by name alone. A value that isn't UTF-8 is
    /// refused, since no TOML can hold it.
    pub(crate) fn of(policy: &Policy, rest: &Rest) -> Result<PolicyFile, BadValue> {
        let environment = &policy.environment;
        let pass: Vec<At<_>> =
            environment.passed.iter().map(|variable| PassedName(variable.name().to_owned()).into()).collect();
        let rules: Vec<_> = policy.network.iter().map(rule).collect();
        let credentials: Vec<_> = policy.credentials.iter().map(|one| credential(one, rest)).collect();
        Ok(PolicyFile {
            version: Version(1).into(),
            profile: Some(ProfileName(policy.profile).into()),
            backend: Some(BackendChoice(policy.backend).into()),
            extends: None,
            accept_gaps: policy.accept_gaps.iter().map(|&gap| CapabilityName(gap).into()).collect(),
            require: policy.require.iter().map(|&required| CapabilityName(required).into()).collect(),
            limits: limits(&policy.limits),
            files: files(&policy.files)?,
            environment: EnvironmentTable {
                set: environment.set.iter().map(set).collect::<Result<_, _>>()?,
                pass: (!pass.is_empty()).then_some(pass),
            },
            network: NetworkTable { allow: (!rules.is_empty()).then_some(rules) },
            credential: (!credentials.is_empty()).then_some(credentials),
            dns: DnsTable { denied: rest.denied_names.map(At::from) },
            audit: AuditTable { requests: rest.record_requests.map(At::from) },
        })
    }
}

/// A rule as it stands in a policy file, on lines of its own that can be put behind any other.
///
/// # Errors
///
/// What TOML can't hold.
pub(crate) fn allowing(allowed: &NetworkRule) -> Result<String, toml::ser::Error> {
    #[derive(Serialize)]
    struct Part {
        network: NetworkTable,
    }
    toml::to_string(&Part { network: NetworkTable { allow: Some(vec![rule(allowed)]) } })
}

fn limits(limits: &Limits) -> LimitsTable {
    let count = |number: u64| Some(Count(number).into());
    LimitsTable {
        timeout: Some(Time(limits.timeout).into()),
        grace: (!limits.grace.is_zero()).then(|| Time(limits.grace).into()),
        memory: Some(Size(limits.memory_bytes).into()),
        cpus: Some(Cores(limits.cpus).into()),
        pids: Some(Pids(limits.pids).into()),
        disk: limits.disk_bytes.map(|bytes| Size(bytes).into()),
        files: count(limits.files),
        output: limits.output_bytes.map(|bytes| Size(bytes).into()),
        bytes_out: Some(Size(limits.bytes_out).into()),
        requests: count(limits.requests),
        connections: count(limits.connections),
        hosts: count(limits.hosts),
    }
}

/// Paths are as they are on this host: absolute, with their links resolved.
fn files(files: &Files) -> Result<FilesTable, BadValue> {
    let Files { workspace, shown, hide, keep, python } = files;
    if python.is_some() || workspace.as_ref().is_some_and(|workspace| workspace.copy) {
        let why = "an interpreter and a copy of the workspace have no keys in a policy file";
        return Err(BadValue::new(why, "name them with --python, --venv and --copy"));
    }
    let inputs = shown.iter().map(input).collect::<Result<Vec<_>, _>>()?;
    let patterns = |list: &[Pattern]| list.iter().cloned().map(|one| FilePattern(one).into()).collect();
    Ok(FilesTable {
        workspace: workspace.as_ref().map(|workspace| path(&workspace.host)).transpose()?,
        inputs: (!inputs.is_empty()).then_some(inputs),
        hide: patterns(hide),
        keep: patterns(keep),
    })
}

fn input(shown: &Shown) -> Result<InputTable, BadValue> {
    Ok(InputTable { host: path(&shown.host)?, guest: Some(path(shown.guest.as_path())?) })
}

fn path(path: &Path) -> Result<At<String>, BadValue> {
    let text = path.to_str().ok_or_else(|| {
        let why = format!("{:?} is not UTF-8, so that no policy file can hold it", path.as_os_str());
        BadValue::new(why, "name it with --workspace or --in instead")
    })?;
    Ok(text.to_owned().into())
}

fn set(variable: &Variable) -> Result<(At<VariableName>, At<VariableValue>), BadValue> {
    let name = variable.name();
    let value = variable.value().to_str().map_err(|_| {
        let why = format!("the value of `{name}` is not UTF-8, so that no policy file can hold it");
        BadValue::new(why, "pass it from the host by name instead")
    })?;
    Ok((VariableName(name.to_owned()).into(), VariableValue(value.to_owned()).into()))
}

fn rule(rule: &NetworkRule) -> RuleTable {
    let usual: &[u16] = match rule.protocol {
        Protocol::Http => &[80],
        Protocol::Https | Protocol::TlsPassthrough => &[443],
        Protocol::Tcp => &[],
    };
    let ports: Vec<_> = rule.ports.iter().map(|&port| Port(port)).collect();
    let methods = rule.methods.as_ref().map(|list| list.iter().cloned().map(Method).collect::<Vec<_>>());
    let paths = rule.paths.as_ref().map(|list| list.iter().cloned().map(PathPattern).collect::<Vec<_>>());
    let protocol = match rule.protocol {
        Protocol::Http | Protocol::Tcp => Some(ProtocolName(rule.protocol)),
        Protocol::Https | Protocol::TlsPassthrough => None,
    };
    RuleTable {
        name: rule.name.clone().map(|name| Name(name).into()),
        host: Host(rule.host.clone()).into(),
        // This machine's own services are named with their port.
        ports: (rule.ports != usual || rule.host.to_string() == OWN_HOST).then(|| ports.into()),
        protocol: protocol.map(At::from),
        tls: (rule.protocol == Protocol::TlsPassthrough).then(|| Tls::Passthrough.into()),
        methods: methods.map(At::from),
        paths: paths.map(At::from),
        private: rule.private.then(|| true.into()),
        credential: rule.credential.clone().map(|name| Name(name).into()),
    }
}

/// A credential with what the file said about it, if one did.
fn credential(rule: &CredentialRule, rest: &Rest) -> CredentialTable {
    let said = rest.credentials.iter().find(|table| table.name.value.0 == rule.name).cloned();
    let ttl = rule.ttl.map(|ttl| Time(ttl).into());
    let on_misuse = rule.ends_on_misuse.then(|| Misuse::Terminate.into());
    match said {
        // What was denied by name stays so.
        Some(table) => CredentialTable { ttl, on_misuse: on_misuse.or(table.on_misuse.clone()), ..table },
        None => CredentialTable {
            name: Name(rule.name.clone()).into(),
            issuer: Name(rule.issuer.clone()).into(),
            scope: BTreeMap::new(),
            ttl,
            max_uses: None,
            inject: None,
            surrogate_env: None,
            on_misuse,
            deliver: BTreeMap::new(),
        },
    }
}
