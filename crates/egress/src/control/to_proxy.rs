//! The frames of the host's.

use std::time::Duration;

use cofferdam_core::outlet::Dial;
use cofferdam_core::policy::{HostPattern, Limits, NetworkRule, Protocol};

use super::codec::{BadFrame, Frame, Reader, Writer};
use super::{DeniedNames, DoorKind, Node, TO_PROXY_BYTES, Terms, ToProxy};

const NODE: u8 = 1;
const DOOR: u8 = 2;
const OPEN: u8 = 3;
const WRITTEN: u8 = 4;
const CUT: u8 = 5;
const CONNECTION: u8 = 6;

impl Frame for ToProxy {
    const MOST_BYTES: usize = TO_PROXY_BYTES;

    fn encode(&self) -> Vec<u8> {
        match self {
            ToProxy::Node(node) => write_node(node),
            ToProxy::Door(kind) => Writer::new(DOOR).byte(*kind as u8).finish(),
            ToProxy::Open(terms) => write_terms(terms),
            ToProxy::Written { event, is_written } => {
                Writer::new(WRITTEN).number(*event).flag(*is_written).finish()
            }
            ToProxy::Connection { session, dial: Dial { host, port, tls } } => Writer::new(CONNECTION)
                .number(u64::from(*session))
                .bytes(host)
                .number(u64::from(*port))
                .option(tls.as_ref(), |it, name| it.bytes(name))
                .finish(),
            ToProxy::Cut { session } => Writer::new(CUT).number(u64::from(*session)).finish(),
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, BadFrame> {
        let mut reader = Reader::new(payload);
        let message = match kind {
            NODE => ToProxy::Node(read_node(&mut reader)?),
            DOOR => ToProxy::Door(match reader.byte()? {
                0 => DoorKind::Tcp,
                1 => DoorKind::Dns,
                2 => DoorKind::Proxy,
                3 => DoorKind::Broker,
                _ => return Err(BadFrame("a kind of door")),
            }),
            OPEN => ToProxy::Open(Box::new(read_terms(&mut reader)?)),
            WRITTEN => ToProxy::Written { event: reader.number()?, is_written: reader.flag()? },
            CONNECTION => ToProxy::Connection {
                session: reader.number_up_to()?,
                dial: Dial {
                    host: reader.bytes()?.to_vec(),
                    port: reader.number_up_to()?,
                    tls: reader.option(|it| it.bytes().map(<[u8]>::to_vec))?,
                },
            },
            CUT => ToProxy::Cut { session: reader.number_up_to()? },
            _ => return Err(BadFrame("its kind")),
        };
        reader.end(message)
    }
}

fn write_node(node: &Node) -> Vec<u8> {
    let hosts = node.private_hosts.as_ref();
    Writer::new(NODE)
        .list(&node.resolvers, |it, resolver| it.text(&resolver.to_string()))
        .bytes(&node.extra_roots)
        .option(node.upstream_proxy.as_ref(), |it, proxy| it.text(proxy))
        .option(hosts, |it, hosts| it.list(hosts, |it, host| it.text(&host.to_string())))
        .number(u64::from(node.user))
        .finish()
}

fn read_node(reader: &mut Reader) -> Result<Node, BadFrame> {
    Ok(Node {
        resolvers: reader.list(|it| it.text()?.parse().map_err(|_| BadFrame("a resolver")))?,
        extra_roots: reader.bytes()?.to_vec(),
        upstream_proxy: reader.option(Reader::text)?,
        private_hosts: reader.option(|it| it.list(pattern))?,
        user: reader.number_up_to()?,
    })
}

fn write_terms(terms: &Terms) -> Vec<u8> {
    let limits = &terms.limits;
    Writer::new(OPEN)
        .number(u64::from(terms.session))
        .text(&terms.run)
        .list(&terms.rules, write_rule)
        .number(limits.bytes_out)
        .number(limits.requests)
        .number(limits.connections)
        .number(limits.hosts)
        .flag(terms.denied_names == DeniedNames::NxDomain)
        .list(&terms.own, Writer::ip)
        .text(&terms.authority)
        .bytes(&terms.authority_key)
        .finish()
}

fn read_terms(reader: &mut Reader) -> Result<Terms, BadFrame> {
    Ok(Terms {
        session: reader.number_up_to()?,
        run: reader.text()?,
        rules: reader.list(read_rule)?,
        limits: Limits {
            bytes_out: reader.number()?,
            requests: reader.number()?,
            connections: reader.number()?,
            hosts: reader.number()?,
            // The others are nobody's business here.
            timeout: Duration::ZERO,
            ..Limits::DEFAULT
        },
        denied_names: if reader.flag()? { DeniedNames::NxDomain } else { DeniedNames::Explain },
        own: reader.list(Reader::ip)?,
        authority: reader.text()?,
        authority_key: reader.bytes()?.to_vec(),
    })
}

const PROTOCOLS: [Protocol; 4] = [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::TlsPassthrough];

fn write_rule(writer: Writer, rule: &NetworkRule) -> Writer {
    let protocol = PROTOCOLS.iter().position(|known| *known == rule.protocol);
    let texts = |it: Writer, texts: &Vec<String>| it.list(texts, |it, text| it.text(text));
    writer
        .option(rule.name.as_ref(), |it, name| it.text(name))
        .text(&rule.host.to_string())
        .list(&rule.ports, |it, port| it.number(u64::from(*port)))
        .byte(protocol.map_or(u8::MAX, |at| at as u8))
        .option(rule.methods.as_ref(), texts)
        .option(rule.paths.as_ref(), texts)
        .flag(rule.private)
        .option(rule.credential.as_ref(), |it, name| it.text(name))
}

fn read_rule(reader: &mut Reader) -> Result<NetworkRule, BadFrame> {
    let texts = |it: &mut Reader| it.list(Reader::text);
    Ok(NetworkRule {
        name: reader.option(Reader::text)?,
        host: pattern(reader)?,
        ports: reader.list(Reader::number_up_to)?,
        protocol: *PROTOCOLS.get(usize::from(reader.byte()?)).ok_or(BadFrame("a protocol"))?,
        methods: reader.option(texts)?,
        paths: reader.option(texts)?,
        private: reader.flag()?,
        credential: reader.option(Reader::text)?,
    })
}

fn pattern(reader: &mut Reader) -> Result<HostPattern, BadFrame> {
    HostPattern::parse(&reader.text()?).map_err(|_| BadFrame("a host pattern"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Frames;
    use super::*;

    fn terms() -> Terms {
        let host = HostPattern::parse("*.github.test").unwrap();
        let rule = NetworkRule {
            name: Some("net".into()),
            methods: Some(vec!["GET".into()]),
            paths: Some(vec!["/a/**".into(), "/".into()]),
            ports: vec![443, 8443],
            private: true,
            credential: Some("gh".into()),
            ..NetworkRule::https(host)
        };
        let tcp = NetworkRule {
            protocol: Protocol::Tcp,
            ..NetworkRule::https(HostPattern::parse("2001:db8::1").unwrap())
        };
        Terms {
            session: 7,
            run: "r_1".into(),
            rules: vec![rule, tcp],
            limits: Limits {
                bytes_out: 1,
                requests: 2,
                connections: 3,
                hosts: 4,
                timeout: Duration::ZERO,
                ..Limits::DEFAULT
            },
            denied_names: DeniedNames::NxDomain,
            own: vec!["192.0.2.1".parse().unwrap(), "2001:db8::9".parse().unwrap()],
            authority: "a".into(),
            authority_key: vec![0, 1, 255],
        }
    }

    fn dial(tls: Option<&[u8]>) -> Dial {
        Dial { host: b"api.test\xff".to_vec(), port: 443, tls: tls.map(<[u8]>::to_vec) }
    }

    fn messages() -> Vec<ToProxy> {
        let node = Node {
            resolvers: vec!["203.0.113.1:53".parse().unwrap()],
            extra_roots: b"-----BEGIN".to_vec(),
            upstream_proxy: Some("proxy.test:3128".into()),
            private_hosts: Some(vec![HostPattern::parse("db.internal").unwrap()]),
            user: 5,
        };
        vec![
            ToProxy::Node(node),
            ToProxy::Node(Node::default()),
            ToProxy::Door(DoorKind::Tcp),
            ToProxy::Door(DoorKind::Dns),
            ToProxy::Door(DoorKind::Proxy),
            ToProxy::Door(DoorKind::Broker),
            ToProxy::Open(Box::new(terms())),
            ToProxy::Written { event: u64::MAX, is_written: true },
            ToProxy::Connection { session: 9, dial: dial(Some(b"api.test")) },
            ToProxy::Connection { session: 9, dial: dial(None) },
            ToProxy::Cut { session: u32::MAX },
        ]
    }

    #[test]
    fn every_message_reads_back_however_its_bytes_arrive() {
        let bytes: Vec<u8> = messages().iter().flat_map(Frame::encode).collect();
        let mut frames = Frames::default();
        let mut read = vec![];
        for piece in bytes.chunks(3) {
            frames.push(piece);
            while let Some(message) = frames.take::<ToProxy>().unwrap() {
                read.push(message);
            }
        }
        assert_eq!(read, messages());
    }

    #[test]
    fn a_frame_that_is_cut_or_has_more_is_none() {
        for message in messages() {
            let frame = message.encode();
            let payload = &frame[5..];
            for end in 0..payload.len() {
                assert!(ToProxy::decode(frame[4], &payload[..end]).is_err(), "{message:?} {end}");
            }
            assert!(ToProxy::decode(frame[4], &[payload, b"x"].concat()).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(kind in 0u8..9, payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = ToProxy::decode(kind, &payload) {
                let frame = message.encode();
                prop_assert_eq!(ToProxy::decode(frame[4], &frame[5..]), Ok(message));
            }
        }
    }
}
