//! Claims, by subject. Each denial stands beside its positive control.

mod function;
mod hostile;
mod http;
mod names;
mod process;
mod tls;

use std::net::SocketAddr;

use crate::origin::{self, Heard, Root};
use crate::world::{self, Plan};

/// Names for one origin's address and a server of names that knows them.
pub(crate) struct Site {
    pub(crate) ip: std::net::Ipv4Addr,
    pub(crate) resolver: SocketAddr,
    pub(crate) asked: Heard,
    pub(crate) root: Root,
}

impl Site {
    pub(crate) fn new(names: &[&str]) -> Site {
        let ip = world::address();
        let table: Vec<_> = names.iter().map(|name| (*name, ip.into())).collect();
        let (resolver, asked) = origin::names(&table);
        Site { ip, resolver, asked, root: Root::new() }
    }

    pub(crate) fn plan(&self, flags: &[&str]) -> Plan {
        Plan::new(flags, self.resolver, &self.root.pem)
    }

    /// An origin over TLS for one name.
    pub(crate) fn https(&self, name: &str, protocols: &[&str]) -> Heard {
        origin::http((self.ip, 443), Some(self.root.server(name, protocols)))
    }

    pub(crate) fn http(&self) -> Heard {
        origin::http((self.ip, 80), None)
    }
}

/// Not here but in the network that the tests make.
macro_rules! in_the_world {
    () => {
        if !crate::world::is_there() {
            return;
        }
    };
}
pub(crate) use in_the_world;
