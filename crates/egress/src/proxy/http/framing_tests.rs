//! Claims about what has one reading.

use proptest::prelude::*;

use super::*;

/// The pieces in which a conversation is passed on, however its bytes arrive.
fn passed(bytes: &[u8], at_once: usize) -> Result<Vec<Vec<u8>>, BadMessage> {
    let (mut framing, mut waiting, mut pieces) = (Framing::default(), vec![], vec![]);
    for piece in bytes.chunks(at_once) {
        waiting.extend_from_slice(piece);
        loop {
            let count = framing.pass(&waiting)?;
            if count == 0 {
                break;
            }
            pieces.push(waiting.drain(..count).collect());
        }
    }
    Ok(pieces)
}

fn whole(text: &str) -> Result<usize, BadMessage> {
    let passed = passed(text.as_bytes(), text.len().max(1))?;
    Ok(passed.iter().map(Vec::len).sum())
}

const SOUND: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n",
    "GET http://a.test/x?y=1 HTTP/1.0\r\n\r\n",
    "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "POST /x HTTP/1.1\r\nHost: a\r\ncontent-length:0\r\nX: \t y\u{e9} \r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0A\r\n0123456789\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nX-Sum: 1\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
];

#[test]
fn sound_requests_are_passed_whole_one_after_the_other() {
    let together: String = SOUND.concat();
    for text in SOUND.iter().map(|text| (*text).to_owned()).chain([together]) {
        for at_once in [1, 2, 3, 7, 64, text.len()] {
            let pieces = passed(text.as_bytes(), at_once).unwrap();
            assert_eq!(pieces.concat(), text.as_bytes(), "{at_once}");
        }
    }
}

#[test]
fn a_head_is_passed_on_by_itself() {
    let pieces = passed(SOUND.concat().as_bytes(), 1000).unwrap();
    let heads = pieces.iter().filter(|piece| piece.ends_with(b"\r\n\r\n") && piece.contains(&b'/'));
    assert_eq!(heads.count(), SOUND.len());
}

#[test]
fn what_says_twice_where_it_ends_is_refused() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: ",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Upgrade: websocket\r\nContent-Length: 5",
        "Upgrade: websocket\r\nTransfer-Encoding: chunked",
    ] {
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n");
        assert_eq!(whole(&text), Err(BadMessage::Length), "{lines}");
    }
    let old = "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(whole(old), Err(BadMessage::Length));
}

#[test]
fn lines_that_can_be_read_in_two_ways_are_refused() {
    use BadMessage::{Header, Hosts, Line, RequestLine};
    for (text, why) in [
        ("GET / HTTP/1.1\nHost: a\n\n", Line),
        ("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", Line),
        ("GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", Line),
        ("GET / HTTP/1.1\r\nHost: a\0\r\n\r\n", Line),
        ("GET / HTTP/1.1\r\nHost: a\x7f\r\n\r\n", Line),
        ("GET / HTTP/1.1\r\nHost : a\r\n\r\n", Header),
        ("GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", Header),
        ("GET / HTTP/1.1\r\n Host: a\r\n\r\n", Header),
        ("GET / HTTP/1.1\r\nHost\r\n\r\n", Header),
        ("GET / HTTP/1.1\r\n: a\r\n\r\n", Header),
        ("GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", Hosts),
        ("GET / HTTP/1.1\r\nX: y\r\n\r\n", Hosts),
        ("GET http://a.test#@b.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", RequestLine),
        ("GET  / HTTP/1.1\r\n\r\n", RequestLine),
        ("GET /a b HTTP/1.1\r\n\r\n", RequestLine),
        ("GET / HTTP/1.1 \r\n\r\n", RequestLine),
        ("GET / HTTP/2.0\r\n\r\n", RequestLine),
        ("GET / http/1.1\r\n\r\n", RequestLine),
        ("GET /\r\n\r\n", RequestLine),
        ("G\u{e9}T / HTTP/1.1\r\n\r\n", RequestLine),
        ("GET /\u{e9} HTTP/1.1\r\n\r\n", RequestLine),
        ("\r\nGET / HTTP/1.1\r\n\r\n", RequestLine),
        ("\r\n\r\n", RequestLine),
    ] {
        assert_eq!(whole(text), Err(why), "{text:?}");
    }
}

#[test]
fn malformed_chunks_are_refused() {
    for chunks in [
        "5;x=y\r\nhello\r\n",
        "\r\n",
        " 5\r\n",
        "5 \r\n",
        "0x5\r\n",
        "5\nhello",
        "5\r\nhello!\r\n",
        "-1\r\n",
        "00000000000000005\r\nhello\r\n",
        "fffffffffffffffff\r\n",
        "ffffffffffffffff\r\n",
    ] {
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        assert_eq!(whole(&text), Err(BadMessage::Chunk), "{chunks:?}");
    }
    for trailers in ["Content-Length: 1", "Transfer-Encoding: chunked", "Host: b"] {
        let head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(whole(&format!("{head}0\r\n{trailers}\r\n\r\n")), Err(BadMessage::Length));
    }
}

#[test]
fn nothing_behind_a_request_to_speak_something_else_goes_on_before_its_answer() {
    for head in [
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "CONNECT a.test:443 HTTP/1.1\r\nHost: a.test:443\r\n\r\n",
    ] {
        for (is_granted, passes) in [(true, 11), (false, 0)] {
            let mut framing = Framing::default();
            let bytes = [head.as_bytes(), b"GET \0 hello"].concat();
            assert_eq!(framing.pass(&bytes), Ok(head.len()));
            assert_eq!(framing.pass(&bytes[head.len()..]), Ok(0));
            assert!(framing.is_held());
            framing.release(is_granted);
            assert_eq!(framing.pass(&bytes[head.len()..]), Ok(passes));
        }
    }
}

#[test]
fn what_the_library_behind_would_refuse_is_refused_here() {
    let lines = |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(count));
    assert!(Framing::default().pass(lines(LINES - 1).as_bytes()).is_ok());
    assert_eq!(Framing::default().pass(lines(LINES).as_bytes()), Err(BadMessage::TooLong));
    for target in ["evil.test%00:443", "[::1", "a:b:c", "a b"] {
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(Framing::default().pass(head.as_bytes()), Err(BadMessage::RequestLine), "{target}");
    }
}

#[test]
fn a_head_has_an_end() {
    let mut framing = Framing::default();
    let long = format!("GET / HTTP/1.1\r\nX: {}", "y".repeat(HEAD_BYTES));
    assert_eq!(framing.pass(long.as_bytes()), Err(BadMessage::TooLong));
    let mut framing = Framing::default();
    assert_eq!(framing.pass(&long.as_bytes()[..HEAD_BYTES - 1]), Ok(0));
}

proptest! {
    #[test]
    fn how_bytes_arrive_changes_nothing(bytes in r"(GET|POST|X) /[ -~\r\n\t]{0,60}\r\n\r\n[0-9a-f\r\n]{0,30}", at_once in 1usize..9) {
        let pieces = passed(bytes.as_bytes(), at_once).map(|pieces| pieces.concat());
        let whole = passed(bytes.as_bytes(), bytes.len()).map(|pieces| pieces.concat());
        prop_assert_eq!(pieces.is_ok(), whole.is_ok());
        if let (Ok(pieces), Ok(whole)) = (pieces, whole) {
            prop_assert_eq!(pieces, whole);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = passed(&bytes, 7);
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
        let _ = passed(&[&head[..], &bytes].concat(), 50);
    }
}
