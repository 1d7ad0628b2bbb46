//! The frames of the proxy's, every byte of which is hostile to whoever reads them.

use cofferdam_core::egress::{Denial, DenialCode};

use super::codec::{BadFrame, Frame, Reader, Writer, door, door_byte};
use super::{Allowed, FROM_PROXY_BYTES, FromProxy, Report};

const READY: u8 = 1;
const FAILED: u8 = 2;
const ALLOWED: u8 = 3;
const DENIED: u8 = 4;
const NAME_DENIED: u8 = 5;
const IS_CUT: u8 = 6;

/// The longest text of a denial, in bytes: what one shows of a request is escaped and shorter
/// ([`SHOWN_BYTES`](cofferdam_core::egress::SHOWN_BYTES)), and flags and names of rules come from a policy.
const TEXT_BYTES: usize = 4096;

impl Frame for FromProxy {
    const MOST_BYTES: usize = FROM_PROXY_BYTES;

    fn encode(&self) -> Vec<u8> {
        match self {
            FromProxy::Ready(version) => Writer::new(READY).byte(*version).finish(),
            FromProxy::Failed(why) => Writer::new(FAILED).text(why).finish(),
            FromProxy::Event { session, event, report } => write_event(*session, *event, report),
            FromProxy::IsCut { session, bytes_out, bytes_in } => {
                Writer::new(IS_CUT).number(u64::from(*session)).number(*bytes_out).number(*bytes_in).finish()
            }
        }
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, BadFrame> {
        let mut reader = Reader::new(payload);
        let message = match kind {
            READY => FromProxy::Ready(reader.byte()?),
            FAILED => FromProxy::Failed(shown_text(&mut reader)?),
            ALLOWED | DENIED | NAME_DENIED => FromProxy::Event {
                session: reader.number_up_to()?,
                event: reader.number()?,
                report: read_report(kind, &mut reader)?,
            },
            IS_CUT => FromProxy::IsCut {
                session: reader.number_up_to()?,
                bytes_out: reader.number()?,
                bytes_in: reader.number()?,
            },
            _ => return Err(BadFrame("its kind")),
        };
        reader.end(message)
    }
}

fn write_event(session: u32, event: u64, report: &Report) -> Vec<u8> {
    let begin = |kind| Writer::new(kind).number(u64::from(session)).number(event);
    match report {
        Report::Allowed(allowed) => write_allowed(begin(ALLOWED), allowed),
        Report::Denied { denial, door, ip } => write_denial(begin(DENIED), denial)
            .option(*door, |it, door| it.byte(door_byte(door)))
            .option(ip.as_ref(), Writer::ip),
        Report::NameDenied { denial, is_told } => write_denial(begin(NAME_DENIED), denial).flag(*is_told),
    }
    .finish()
}

fn write_allowed(writer: Writer, allowed: &Allowed) -> Writer {
    writer
        .byte(door_byte(allowed.door))
        .text(&allowed.host)
        .number(u64::from(allowed.port))
        .ip(&allowed.ip)
        .option(allowed.request.as_ref(), |it, (method, path)| it.bytes(method).bytes(path))
}

fn write_denial(writer: Writer, denial: &Denial) -> Writer {
    let code = DenialCode::ALL.iter().position(|known| *known == denial.code);
    let text = |it: Writer, text: &String| it.text(text);
    writer
        .byte(code.map_or(u8::MAX, |at| at as u8))
        .text(&denial.host)
        .option(denial.port, |it, port| it.number(u64::from(port)))
        .option(denial.method.as_ref(), text)
        .option(denial.path.as_ref(), text)
        .option(denial.rule.as_ref(), text)
        .option(denial.needs.as_ref(), text)
}

fn read_report(kind: u8, reader: &mut Reader) -> Result<Report, BadFrame> {
    if kind == ALLOWED {
        return Ok(Report::Allowed(Allowed {
            door: door(reader.byte()?)?,
            host: shown_text(reader)?,
            port: reader.number_up_to()?,
            ip: reader.ip()?,
            request: reader.option(|it| Ok((it.bytes()?.to_vec(), it.bytes()?.to_vec())))?,
        }));
    }
    let denial = read_denial(reader)?;
    Ok(match kind {
        DENIED => Report::Denied {
            denial,
            door: reader.option(|it| door(it.byte()?))?,
            ip: reader.option(Reader::ip)?,
        },
        _ => Report::NameDenied { denial, is_told: reader.flag()? },
    })
}

fn read_denial(reader: &mut Reader) -> Result<Denial, BadFrame> {
    Ok(Denial {
        code: *DenialCode::ALL.get(usize::from(reader.byte()?)).ok_or(BadFrame("a code"))?,
        host: shown_text(reader)?,
        port: reader.option(Reader::number_up_to)?,
        method: reader.option(shown_text)?,
        path: reader.option(shown_text)?,
        rule: reader.option(shown_text)?,
        needs: reader.option(shown_text)?,
    })
}

/// Text that drives no terminal and fills no log.
fn shown_text(reader: &mut Reader) -> Result<String, BadFrame> {
    let text = reader.text()?;
    if text.len() > TEXT_BYTES || text.chars().any(char::is_control) {
        return Err(BadFrame("text that isn't to be shown"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use cofferdam_core::egress::Door;
    use proptest::prelude::*;

    use super::super::Frames;
    use super::*;

    fn denial() -> Denial {
        Denial {
            port: Some(443),
            rule: Some("limits.requests".into()),
            needs: Some("--allow a.test".into()),
            ..Denial::of_bytes(DenialCode::LimitExceeded, b"a.test").with_request(b"GET", b"/x")
        }
    }

    fn messages() -> Vec<FromProxy> {
        let event = |report| FromProxy::Event { session: 3, event: 9, report };
        let allowed = Allowed {
            door: Door::Forward,
            host: "a.test".into(),
            port: 80,
            ip: "203.0.113.5".parse().unwrap(),
            request: Some((b"GET".to_vec(), b"/\xff".to_vec())),
        };
        let ip = Some("2001:db8::1".parse().unwrap());
        vec![
            FromProxy::Ready(1),
            FromProxy::Failed("could not".into()),
            event(Report::Allowed(Allowed { request: None, door: Door::Function, ..allowed.clone() })),
            event(Report::Allowed(allowed)),
            event(Report::Denied { denial: denial(), door: Some(Door::Connect), ip }),
            event(Report::Denied {
                denial: Denial::of_bytes(DenialCode::InvalidHost, b"\0"),
                door: None,
                ip: None,
            }),
            event(Report::NameDenied { denial: denial(), is_told: true }),
            FromProxy::IsCut { session: 1, bytes_out: 2, bytes_in: u64::MAX },
        ]
    }

    #[test]
    fn every_message_reads_back() {
        let mut frames = Frames::default();
        messages().iter().for_each(|message| frames.push(&message.encode()));
        let read: Vec<FromProxy> = std::iter::from_fn(|| frames.take().unwrap()).collect();
        assert_eq!(read, messages());
    }

    #[test]
    fn a_length_beyond_what_is_taken_is_refused_before_it_is_there() {
        for length in [0, FROM_PROXY_BYTES as u32 + 1, u32::MAX] {
            let mut frames = Frames::default();
            frames.push(&length.to_le_bytes());
            assert_eq!(frames.take::<FromProxy>(), Err(BadFrame("its length")));
        }
    }

    #[test]
    fn text_that_drives_a_terminal_is_refused() {
        let frame = FromProxy::Failed("\x1b[2J".into()).encode();
        assert!(FromProxy::decode(frame[4], &frame[5..]).is_err());
        let long = FromProxy::Failed("x".repeat(TEXT_BYTES + 1)).encode();
        assert!(FromProxy::decode(long[4], &long[5..]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(kind in 0u8..9, payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = FromProxy::decode(kind, &payload) {
                let frame = message.encode();
                prop_assert_eq!(FromProxy::decode(frame[4], &frame[5..]), Ok(message));
            }
        }

        #[test]
        fn a_changed_byte_panics_nobody(which in 0usize..8, at: usize, byte: u8) {
            let mut frame = messages()[which].encode();
            let at = 4 + at % (frame.len() - 4);
            frame[at] = byte;
            let _ = FromProxy::decode(frame[4], &frame[5..]);
        }
    }
}
