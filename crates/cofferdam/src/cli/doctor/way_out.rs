//! What leads out of a container: what is captured of its network, and the proxy that judges it, started to see.

use cofferdam_backends::container::Host;
use cofferdam_core::capability::Capability;

use super::boundaries;
use super::findings::{Captured, Trouble, WayOutFound};
use crate::egress;
use crate::files::{Node, Resolver};

/// Looks at what is captured, which the host must know by now, and starts a proxy as the first packet would.
pub(super) fn look(container: &Host, node: &Node) -> WayOutFound {
    let captured = container.captures.as_ref().ok().map(|support| match support.every_port {
        Ok(()) => Captured::EveryPort,
        Err(_) => Captured::ListedPorts,
    });
    let proxy = egress::trial(node).map_err(Trouble::from);
    WayOutFound {
        captured,
        ipv6: container.captures.as_ref().is_ok_and(|support| support.ipv6.is_ok()),
        trouble: container.lacks(Capability::DenialsUnlistedPort).map(Trouble::from),
        proxy: boundaries::trial(&proxy),
        proxy_trouble: proxy.err(),
        resolvers: match &node.resolver {
            Resolver::Servers(servers) => servers.iter().map(ToString::to_string).collect(),
            Resolver::System => vec![],
        },
        upstream_proxy: node.upstream_proxy.clone(),
    }
}
