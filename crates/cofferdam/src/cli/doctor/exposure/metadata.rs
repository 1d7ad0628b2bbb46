//! Addresses at which a cloud hands out credentials: known from configuration alone. Nothing is asked
//! of any network, so this says that there are signs, not that an address answers.

use cofferdam_core::capability::Capability;

use super::findings::{Finding, Group, Kind, Scope};
use super::surroundings::{Surroundings, is_readable_file, text};

/// No packet leaves a run that was granted no network.
const BY_NETWORK: &[Capability] = &[Capability::Network];

/// A token's file is out of reach.
const BY_FILES: &[Capability] = &[Capability::Files];

const MACHINE: Kind =
    Kind::new("cloud-machine", "machine of a cloud", "its metadata address may hand out the machine's role");
const CONTAINER: Kind = Kind::new(
    "container-credentials",
    "address for credentials",
    "hands out the task's role to whoever asks",
);
const ACCOUNT: Kind =
    Kind::new("kubernetes-account", "Kubernetes service account", "acts as this pod in the cluster");
const CLUSTER: Kind = Kind::new("kubernetes-pod", "pod of a cluster", "the cluster's API is within reach");
const IDENTITY: Kind =
    Kind::new("identity-token-file", "identity token", "is exchanged for a role in the cloud");

/// What a field of the firmware says about whose machine this is: the field below
/// `/sys/class/dmi/id`, how it begins, and whose that is. Source: the clouds' own guides to detecting
/// their machines.
const FIRMWARE: &[(&str, &str, &str)] = &[
    ("sys_vendor", "Amazon EC2", "AWS"),
    ("board_vendor", "Amazon EC2", "AWS"),
    ("bios_vendor", "Amazon EC2", "AWS"),
    ("product_name", "Google Compute Engine", "Google Cloud"),
    ("sys_vendor", "Google", "Google Cloud"),
    ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", "Azure"),
    ("chassis_asset_tag", "OracleCloud.com", "Oracle Cloud"),
    ("sys_vendor", "DigitalOcean", "DigitalOcean"),
    ("sys_vendor", "Hetzner", "Hetzner"),
    ("sys_vendor", "Alibaba Cloud", "Alibaba Cloud"),
    ("sys_vendor", "Scaleway", "Scaleway"),
    ("sys_vendor", "Vultr", "Vultr"),
    ("sys_vendor", "Linode", "Akamai"),
    ("sys_vendor", "OpenStack Foundation", "OpenStack"),
    ("product_name", "OpenStack", "OpenStack"),
];

/// Files by which cloud-init tells that it configured this machine.
const CLOUD_INIT: &[&str] = &["/run/cloud-init/cloud-id", "/var/lib/cloud/data/instance-id"];

/// Variables that name an address for credentials.
const ADDRESSES: &[&str] = &[
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "ECS_CONTAINER_METADATA_URI",
    "ECS_CONTAINER_METADATA_URI_V4",
    "GCE_METADATA_HOST",
    "IDENTITY_ENDPOINT",
    "MSI_ENDPOINT",
    "ACTIONS_ID_TOKEN_REQUEST_URL",
];

/// Variables that name the file of a token.
const TOKEN_FILES: &[&str] =
    &["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE"];

/// Every sign of a cloud.
pub(super) fn look(around: &Surroundings) -> Vec<Finding> {
    let group = Group::CloudMetadata;
    let mut found: Vec<Finding> = vec![];
    found.extend(firmware(around));
    for path in CLOUD_INIT.iter().filter(|path| around.machine(path).exists()) {
        found.push(Finding::new(group, Scope::Machine, MACHINE, path, BY_NETWORK));
    }
    for name in ADDRESSES.iter().filter(|name| around.variable(name).is_some()) {
        found.push(Finding::new(group, Scope::Person, CONTAINER, name, BY_NETWORK));
    }
    for name in TOKEN_FILES {
        let path = around.variable(name).map(std::path::PathBuf::from);
        for path in path.into_iter().filter(|path| path.is_absolute() && is_readable_file(path)) {
            found.push(Finding::new(group, Scope::Person, IDENTITY, &around.shown(&path), BY_FILES));
        }
    }
    if around.variable("KUBERNETES_SERVICE_HOST").is_some() {
        found.push(Finding::new(group, Scope::Person, CLUSTER, "KUBERNETES_SERVICE_HOST", BY_NETWORK));
    }
    let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    if is_readable_file(&around.machine(token)) {
        found.push(Finding::new(group, Scope::Machine, ACCOUNT, token, BY_FILES));
    }
    found
}

/// The first field of the firmware that names a cloud.
fn firmware(around: &Surroundings) -> Option<Finding> {
    FIRMWARE.iter().find_map(|(field, start, cloud)| {
        let place = format!("/sys/class/dmi/id/{field}");
        let says = text(&around.machine(&place))?;
        let mut finding = Finding::new(Group::CloudMetadata, Scope::Machine, MACHINE, &place, BY_NETWORK);
        finding.what = format!("{} ({cloud})", MACHINE.what);
        says.trim().starts_with(start).then_some(finding)
    })
}
