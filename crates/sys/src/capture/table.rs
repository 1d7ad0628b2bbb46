//! The nftables table of a sandbox: what leaves a program, and where it is sent instead.
//!
//! One table with two chains, at the hook through which everything passes that a program sends. The first sees
//! every packet, before the kernel notes connections, and refuses what leads nowhere. The second, of the type
//! `nat`, sees the first packet of each connection, and redirects it. Only connections that are redirected are
//! noted at all: a note takes 256 bytes of the kernel's memory for up to two minutes, which are charged to
//! nobody. The numbers are those of `linux/netfilter/nf_tables.h` and `nfnetlink.h`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{DNS_PORT, TCP_PORT};
use crate::netlink::{self, Answer, Attributes, Bus, Messages, Request};

const TABLE: &str = "cofferdam";
const REFUSED_UDP: &str = "refused-udp";
const REFUSED_OTHER: &str = "refused-other";

/// One part of a rule: a condition, or what is done where all before it hold.
enum Part {
    /// The internet protocol has this version.
    Family(libc::c_int),
    /// The protocol inside it is this one.
    Protocol(libc::c_int),
    /// The destination begins like this. The offset is that of the address in its header, in bytes.
    Destination { offset: u32, begins: Vec<u8> },
    /// The source's port is this one.
    From(u16),
    /// The destination's port is this one.
    To(u16),
    /// Isn't noted as part of a connection.
    NotNoted,
    /// Goes where it was going.
    Accept,
    /// Goes to this port of the loopback interface.
    Redirect(u16),
    /// Is counted under a name.
    Count(&'static str),
    /// Goes nowhere, and its sender is told at once.
    Reject,
}

/// Offsets of the destination: `struct iphdr` of `linux/ip.h`, `struct ipv6hdr` of `linux/ipv6.h`.
const IPV4_DESTINATION: u32 = 16;
const IPV6_DESTINATION: u32 = 24;

/// Rules at the hook for what is sent, in order: the first whose conditions hold has the last word.
struct Chain {
    name: &'static str,
    kind: &'static str,
    priority: i32,
    rules: Vec<Vec<Part>>,
}

/// NF_IP_PRI_RAW and NF_IP_PRI_NAT_DST of `linux/netfilter_ipv4.h`.
const BEFORE_CONNECTIONS_ARE_NOTED: i32 = -300;
const WHERE_THEY_ARE_REDIRECTED: i32 = -100;

/// For every packet.
fn leaving() -> Chain {
    use Part::{Accept, Count, Family, From, NotNoted, Protocol, Reject, To};
    let own_ipv4 = Part::Destination { offset: IPV4_DESTINATION, begins: vec![127] };
    let own_ipv6 =
        Part::Destination { offset: IPV6_DESTINATION, begins: Ipv6Addr::LOCALHOST.octets().to_vec() };
    let tcp = || Protocol(libc::IPPROTO_TCP);
    let udp = || Protocol(libc::IPPROTO_UDP);
    let rules = vec![
        // The host's side of a redirected connection, and a program that dials that by itself.
        vec![tcp(), From(TCP_PORT), Accept],
        vec![tcp(), To(TCP_PORT), Accept],
        vec![Family(libc::NFPROTO_IPV4), own_ipv4, NotNoted, Accept],
        vec![Family(libc::NFPROTO_IPV6), own_ipv6, NotNoted, Accept],
        vec![tcp(), Accept],
        vec![udp(), To(DNS_PORT), NotNoted, Accept],
        vec![udp(), Count(REFUSED_UDP), Reject],
        vec![Count(REFUSED_OTHER), Reject],
    ];
    Chain { name: "leaving", kind: "filter", priority: BEFORE_CONNECTIONS_ARE_NOTED, rules }
}

/// For the first packet of each connection that is noted.
fn redirected() -> Chain {
    let rules = vec![vec![Part::Protocol(libc::IPPROTO_TCP), Part::Redirect(TCP_PORT)]];
    Chain { name: "redirected", kind: "nat", priority: WHERE_THEY_ARE_REDIRECTED, rules }
}

/// The whole table, in one batch: all of it is there afterwards, or nothing.
pub(super) fn request() -> Request {
    const NFTA_TABLE_NAME: u16 = 1;
    let mut batch = Messages::default();
    boundary(&mut batch, NFNL_MSG_BATCH_BEGIN);
    // An error of any message comes back; the acknowledgement of one says that there was none.
    add(&mut batch, libc::NFT_MSG_NEWTABLE, 0, Answer::Always, |it| it.name(NFTA_TABLE_NAME, TABLE));
    [REFUSED_UDP, REFUSED_OTHER].iter().for_each(|name| add_counter(&mut batch, name));
    for chain in [leaving(), redirected()] {
        add_chain(&mut batch, &chain);
        chain.rules.iter().for_each(|rule| add_rule(&mut batch, chain.name, rule));
    }
    boundary(&mut batch, NFNL_MSG_BATCH_END);
    batch.request(Bus::Netfilter, "load the table that captures connections")
}

const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;

/// `struct nfgenmsg`: the family, NFNETLINK_V0 and a resource in the byte order of networks.
fn head(family: libc::c_int, resource: u16) -> [u8; 4] {
    let [high, low] = resource.to_be_bytes();
    [family as u8, 0, high, low]
}

fn boundary(batch: &mut Messages, kind: u16) {
    let head = head(libc::AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
    batch.add(kind, 0, Answer::OnlyErrors, &head, |_| {});
}

fn add(
    batch: &mut Messages,
    kind: libc::c_int,
    flags: libc::c_int,
    answer: Answer,
    fill: impl FnOnce(&mut Attributes<'_>),
) {
    let kind = NFNL_SUBSYS_NFTABLES << 8 | kind as u16;
    batch.add(kind, libc::NLM_F_CREATE | flags, answer, &head(libc::NFPROTO_INET, 0), fill);
}

const NFTA_OBJ_TABLE: u16 = 1;
const NFTA_OBJ_NAME: u16 = 2;
const NFTA_OBJ_TYPE: u16 = 3;
const NFTA_OBJ_DATA: u16 = 4;
const NFT_OBJECT_COUNTER: u32 = 1;

fn add_counter(batch: &mut Messages, name: &str) {
    add(batch, libc::NFT_MSG_NEWOBJ, 0, Answer::OnlyErrors, |it| {
        name_counter(it, name);
        it.nested(NFTA_OBJ_DATA, |_| {});
    });
}

fn name_counter(it: &mut Attributes<'_>, name: &str) {
    it.name(NFTA_OBJ_TABLE, TABLE);
    it.name(NFTA_OBJ_NAME, name);
    it.big_endian(NFTA_OBJ_TYPE, NFT_OBJECT_COUNTER);
}

fn add_chain(batch: &mut Messages, chain: &Chain) {
    const NFTA_CHAIN_TABLE: u16 = 1;
    const NFTA_CHAIN_NAME: u16 = 3;
    const NFTA_CHAIN_HOOK: u16 = 4;
    const NFTA_CHAIN_TYPE: u16 = 7;
    const NFTA_HOOK_HOOKNUM: u16 = 1;
    const NFTA_HOOK_PRIORITY: u16 = 2;
    add(batch, libc::NFT_MSG_NEWCHAIN, 0, Answer::OnlyErrors, |it| {
        it.name(NFTA_CHAIN_TABLE, TABLE);
        it.name(NFTA_CHAIN_NAME, chain.name);
        it.nested(NFTA_CHAIN_HOOK, |it| {
            it.big_endian(NFTA_HOOK_HOOKNUM, libc::NF_INET_LOCAL_OUT as u32);
            it.big_endian(NFTA_HOOK_PRIORITY, chain.priority as u32);
        });
        it.name(NFTA_CHAIN_TYPE, chain.kind);
    });
}

fn add_rule(batch: &mut Messages, chain: &str, parts: &[Part]) {
    const NFTA_RULE_TABLE: u16 = 1;
    const NFTA_RULE_CHAIN: u16 = 2;
    const NFTA_RULE_EXPRESSIONS: u16 = 4;
    add(batch, libc::NFT_MSG_NEWRULE, libc::NLM_F_APPEND, Answer::OnlyErrors, |it| {
        it.name(NFTA_RULE_TABLE, TABLE);
        it.name(NFTA_RULE_CHAIN, chain);
        it.nested(NFTA_RULE_EXPRESSIONS, |it| parts.iter().for_each(|part| part.write(it)));
    });
}

/// The register through which expressions pass values on: NFT_REG_1.
const REGISTER: u32 = 1;

impl Part {
    /// Adds the expressions that do it.
    fn write(&self, list: &mut Attributes<'_>) {
        match self {
            Part::Family(family) => {
                load_meta(list, libc::NFT_META_NFPROTO);
                compare(list, &[*family as u8]);
            }
            Part::Protocol(protocol) => {
                load_meta(list, libc::NFT_META_L4PROTO);
                compare(list, &[*protocol as u8]);
            }
            Part::Destination { offset, begins } => {
                load_bytes(list, libc::NFT_PAYLOAD_NETWORK_HEADER, *offset, begins.len() as u32);
                compare(list, begins);
            }
            Part::From(port) => compare_port(list, SOURCE_PORT, *port),
            Part::To(port) => compare_port(list, DESTINATION_PORT, *port),
            Part::NotNoted => expression(list, "notrack", |_| {}),
            Part::Accept => accept(list),
            Part::Redirect(port) => redirect(list, *port),
            Part::Count(name) => count(list, name),
            Part::Reject => reject(list),
        }
    }
}

fn expression(list: &mut Attributes<'_>, name: &str, fill: impl FnOnce(&mut Attributes<'_>)) {
    const NFTA_LIST_ELEM: u16 = 1;
    const NFTA_EXPR_NAME: u16 = 1;
    const NFTA_EXPR_DATA: u16 = 2;
    list.nested(NFTA_LIST_ELEM, |it| {
        it.name(NFTA_EXPR_NAME, name);
        it.nested(NFTA_EXPR_DATA, fill);
    });
}

fn load_meta(list: &mut Attributes<'_>, key: libc::c_int) {
    const NFTA_META_DREG: u16 = 1;
    const NFTA_META_KEY: u16 = 2;
    expression(list, "meta", |it| {
        it.big_endian(NFTA_META_DREG, REGISTER);
        it.big_endian(NFTA_META_KEY, key as u32);
    });
}

fn load_bytes(list: &mut Attributes<'_>, base: libc::c_int, offset: u32, length: u32) {
    const NFTA_PAYLOAD_DREG: u16 = 1;
    const NFTA_PAYLOAD_BASE: u16 = 2;
    const NFTA_PAYLOAD_OFFSET: u16 = 3;
    const NFTA_PAYLOAD_LEN: u16 = 4;
    expression(list, "payload", |it| {
        it.big_endian(NFTA_PAYLOAD_DREG, REGISTER);
        it.big_endian(NFTA_PAYLOAD_BASE, base as u32);
        it.big_endian(NFTA_PAYLOAD_OFFSET, offset);
        it.big_endian(NFTA_PAYLOAD_LEN, length);
    });
}

/// Offsets of the ports in the headers of TCP and UDP alike, in bytes.
const SOURCE_PORT: u32 = 0;
const DESTINATION_PORT: u32 = 2;

fn compare_port(list: &mut Attributes<'_>, offset: u32, port: u16) {
    load_bytes(list, libc::NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2);
    compare(list, &port.to_be_bytes());
}

const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;

fn compare(list: &mut Attributes<'_>, value: &[u8]) {
    const NFTA_CMP_SREG: u16 = 1;
    const NFTA_CMP_OP: u16 = 2;
    const NFTA_CMP_DATA: u16 = 3;
    expression(list, "cmp", |it| {
        it.big_endian(NFTA_CMP_SREG, REGISTER);
        it.big_endian(NFTA_CMP_OP, libc::NFT_CMP_EQ as u32);
        it.nested(NFTA_CMP_DATA, |it| it.bytes(NFTA_DATA_VALUE, value));
    });
}

const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;

fn accept(list: &mut Attributes<'_>) {
    const NFTA_VERDICT_CODE: u16 = 1;
    expression(list, "immediate", |it| {
        it.big_endian(NFTA_IMMEDIATE_DREG, libc::NFT_REG_VERDICT as u32);
        it.nested(NFTA_IMMEDIATE_DATA, |it| {
            it.nested(NFTA_DATA_VERDICT, |it| it.big_endian(NFTA_VERDICT_CODE, libc::NF_ACCEPT as u32));
        });
    });
}

/// To 127.0.0.1 or ::1, as `nf_nat_redirect` of the kernel does at this hook.
fn redirect(list: &mut Attributes<'_>, port: u16) {
    const NFTA_REDIR_REG_PROTO_MIN: u16 = 1;
    expression(list, "immediate", |it| {
        it.big_endian(NFTA_IMMEDIATE_DREG, REGISTER);
        it.nested(NFTA_IMMEDIATE_DATA, |it| it.bytes(NFTA_DATA_VALUE, &port.to_be_bytes()));
    });
    expression(list, "redir", |it| it.big_endian(NFTA_REDIR_REG_PROTO_MIN, REGISTER));
}

fn count(list: &mut Attributes<'_>, name: &str) {
    const NFTA_OBJREF_IMM_TYPE: u16 = 1;
    const NFTA_OBJREF_IMM_NAME: u16 = 2;
    expression(list, "objref", |it| {
        it.big_endian(NFTA_OBJREF_IMM_TYPE, NFT_OBJECT_COUNTER);
        it.name(NFTA_OBJREF_IMM_NAME, name);
    });
}

/// Drops it, which its sender sees as EPERM, and says by ICMP that nobody is there, which ends a wait for an
/// answer.
fn reject(list: &mut Attributes<'_>) {
    const NFTA_REJECT_TYPE: u16 = 1;
    const NFTA_REJECT_ICMP_CODE: u16 = 2;
    expression(list, "reject", |it| {
        it.big_endian(NFTA_REJECT_TYPE, libc::NFT_REJECT_ICMPX_UNREACH as u32);
        it.bytes(NFTA_REJECT_ICMP_CODE, &[libc::NFT_REJECT_ICMPX_PORT_UNREACH as u8]);
    });
}

/// Of an error it is enough to have its number.
const LARGER_THAN_ANY_ANSWER: usize = 4096;

/// The table as it counts, for as long as this is open, even when the sandbox is gone.
#[derive(Debug)]
pub struct Table(File);

/// How many packets went nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Datagrams of UDP to other ports than that of DNS.
    pub udp: u64,
    /// Packets that are neither TCP nor UDP. A program without privileges can't send any.
    pub other: u64,
}

impl From<OwnedFd> for Table {
    fn from(socket: OwnedFd) -> Self {
        Table(socket.into())
    }
}

impl From<Table> for OwnedFd {
    fn from(table: Table) -> Self {
        table.0.into()
    }
}

impl AsFd for Table {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Table {
    /// Loads it through a socket to the nftables of a namespace.
    pub(super) fn load(socket: OwnedFd) -> io::Result<Table> {
        let mut table = Table::from(socket);
        let request = request();
        table.0.write_all(&request.bytes)?;
        let mut answer = [0; LARGER_THAN_ANY_ANSWER];
        loop {
            // The kernel has answered before the call returned with which it was asked.
            let length = table.0.read(&mut answer)?;
            for reply in netlink::replies(&answer[..length]) {
                match reply.errno() {
                    Some(0) if reply.number == request.last => return Ok(table),
                    Some(0) | None => {}
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
    }

    /// Asks the kernel for both counts. Two system calls each, about ten microseconds.
    ///
    /// # Errors
    ///
    /// EPERM unless the caller may administer the sandbox's network: root of the host, or the very user that
    /// launched the sandbox, outside it. `InvalidData` if the kernel's answer makes no sense.
    pub fn refused(&mut self) -> io::Result<Refused> {
        Ok(Refused { udp: self.counter(REFUSED_UDP)?, other: self.counter(REFUSED_OTHER)? })
    }

    fn counter(&mut self, name: &str) -> io::Result<u64> {
        let mut question = Messages::default();
        let kind = NFNL_SUBSYS_NFTABLES << 8 | libc::NFT_MSG_GETOBJ as u16;
        let head = head(libc::NFPROTO_INET, 0);
        question.add(kind, 0, Answer::OnlyErrors, &head, |it| name_counter(it, name));
        let request = question.request(Bus::Netfilter, "read a counter");
        self.0.write_all(&request.bytes)?;
        let mut answer = [0; LARGER_THAN_ANY_ANSWER];
        let length = self.0.read(&mut answer)?;
        let reply = netlink::replies(&answer[..length]).next().ok_or(io::ErrorKind::InvalidData)?;
        match reply.errno() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => packets(reply.body.get(head.len()..).unwrap_or_default())
                .ok_or_else(|| io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The number of packets in the description of a counter.
fn packets(attributes: &[u8]) -> Option<u64> {
    const NFTA_COUNTER_PACKETS: u16 = 2;
    let data = netlink::attribute(attributes, NFTA_OBJ_DATA)?;
    let value = netlink::attribute(data, NFTA_COUNTER_PACKETS)?;
    Some(u64::from_be_bytes(value.try_into().ok()?))
}
