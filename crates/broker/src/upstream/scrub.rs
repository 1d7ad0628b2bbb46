//! Takes a secret out of what a host answers: some hosts say back what they were sent. Best effort: what a host encodes
//! in a way that isn't listed here goes through, and so does what it compresses although it was asked not to.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use cofferdam_core::secret::Secret;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{HeaderMap, HeaderValue};
use memchr::memmem;
use zeroize::Zeroizing;

/// The shortest text that is looked for: shorter ones are in anything.
const SHORTEST: usize = 8;

/// What stands in place of each byte, so that lengths stay what was announced.
const MASK: u8 = b'*';

/// How many bytes of a form may have gone on before it is seen that it is one. So what only begins like a secret is held
/// up where that is likely to go on.
const BEGUN: usize = 3;

/// The forms in which a secret may come back.
pub(crate) struct Forms(Vec<Zeroizing<Vec<u8>>>);

impl Forms {
    /// As it is; in base64, wherever in it; with percent signs; as JSON has it.
    pub(crate) fn of(secret: &Secret) -> Self {
        let secret = secret.expose();
        let mut forms = vec![Zeroizing::new(secret.to_vec()), percent(secret), json(secret)];
        for before in 0..3_usize {
            // The letters that depend on nothing but the secret: RFC 4648, section 4.
            let padded = Zeroizing::new([&b"\0\0"[..before], secret].concat());
            let begin = (before * 8).div_ceil(6);
            let end = padded.len() * 8 / 6;
            for encoded in [STANDARD_NO_PAD.encode(&*padded), URL_SAFE_NO_PAD.encode(&*padded)] {
                let encoded = Zeroizing::new(encoded.into_bytes());
                forms.push(Zeroizing::new(encoded.get(begin..end).unwrap_or_default().to_vec()));
            }
        }
        forms.retain(|form| form.len() >= SHORTEST);
        forms.sort_by(|one, other| one.as_slice().cmp(other));
        forms.dedup_by(|one, other| one.as_slice() == other.as_slice());
        Forms(forms)
    }

    fn longest(&self) -> usize {
        self.0.iter().map(|form| form.len()).max().unwrap_or(0)
    }

    fn stand_in(&self, bytes: &[u8]) -> bool {
        self.0.iter().any(|form| memmem::find(bytes, form).is_some())
    }

    /// Masks what is there; whether something was.
    fn mask(&self, bytes: &mut [u8]) -> bool {
        let mut found = vec![];
        for form in &self.0 {
            found.extend(memmem::find_iter(bytes, form).map(|at| at..at + form.len()));
        }
        let is_there = !found.is_empty();
        found.into_iter().for_each(|range| bytes[range].fill(MASK));
        is_there
    }

    /// How many bytes at the end may be the beginning of one.
    fn begun_at_the_end(&self, bytes: &[u8]) -> usize {
        let begun = |form: &Zeroizing<Vec<u8>>| {
            let most = bytes.len().min(form.len() - 1);
            (BEGUN + 1..=most).rev().find(|count| bytes.ends_with(&form[..*count]))
        };
        self.0.iter().filter_map(begun).max().unwrap_or(0)
    }

    /// Masks what stands in the values of headers; whether something was there.
    pub(crate) fn mask_headers(&self, headers: &mut HeaderMap) -> bool {
        let mut is_there = false;
        for value in headers.values_mut().filter(|value| self.stand_in(value.as_bytes())) {
            is_there = true;
            let mut bytes = value.as_bytes().to_vec();
            self.mask(&mut bytes);
            *value = HeaderValue::from_bytes(&bytes).unwrap_or(HeaderValue::from_static("*"));
        }
        is_there
    }
}

/// RFC 3986, section 2.1.
fn percent(secret: &[u8]) -> Zeroizing<Vec<u8>> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut text = Zeroizing::new(Vec::with_capacity(3 * secret.len()));
    for &byte in secret {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => text.push(byte),
            _ => text.extend_from_slice(&[
                b'%',
                DIGITS[usize::from(byte >> 4)],
                DIGITS[usize::from(byte & 15)],
            ]),
        }
    }
    text
}

/// RFC 8259, section 7, as most write it.
fn json(secret: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut text = Zeroizing::new(Vec::with_capacity(2 * secret.len()));
    for &byte in secret {
        if matches!(byte, b'"' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    text
}

/// What goes through, and what is held up.
#[derive(Default)]
struct Through {
    /// The last bytes that went on.
    gone: Vec<u8>,
    /// The beginning of a secret, maybe.
    held: Zeroizing<Vec<u8>>,
    found: bool,
}

impl Through {
    /// What may go on of a piece.
    fn pass(&mut self, forms: &Forms, piece: Bytes, is_last: bool) -> Bytes {
        let joint = forms.longest().min(piece.len());
        let mut before = Zeroizing::new([&self.gone[..], &self.held, &piece[..joint]].concat());
        let is_plain = self.held.is_empty()
            && !forms.stand_in(&before)
            && !forms.stand_in(&piece)
            && (is_last || forms.begun_at_the_end(if joint < piece.len() { &piece } else { &before }) == 0);
        if is_plain {
            self.keep(&[&self.gone[..], &piece].concat());
            return piece;
        }
        let from = self.gone.len();
        before.extend_from_slice(&piece[joint..]);
        self.found |= forms.mask(&mut before);
        let held = if is_last { 0 } else { forms.begun_at_the_end(&before).min(before.len() - from) };
        let until = before.len() - held;
        let out = Bytes::copy_from_slice(&before[from..until]);
        self.held = Zeroizing::new(before[until..].to_vec());
        self.keep(&before[..until]);
        out
    }

    fn keep(&mut self, gone: &[u8]) {
        self.gone = gone[gone.len().saturating_sub(BEGUN)..].to_vec();
    }
}

/// A body without the secret.
pub(crate) struct Scrubbed {
    body: Incoming,
    forms: Option<Rc<Forms>>,
    through: Through,
    is_over: bool,
    /// Told once, if the secret was there.
    reflected: Option<Box<dyn FnOnce()>>,
}

impl Scrubbed {
    /// Scrubs a body of these forms, and tells if one was there.
    pub(crate) fn new(body: Incoming, forms: Rc<Forms>, reflected: impl FnOnce() + 'static) -> Self {
        let (forms, reflected) = (Some(forms), Some(Box::new(reflected) as Box<dyn FnOnce()>));
        Scrubbed { body, forms, through: Through::default(), is_over: false, reflected }
    }

    /// A body of a request without the secret.
    pub(crate) fn as_it_is(body: Incoming) -> Self {
        Scrubbed { body, forms: None, through: Through::default(), is_over: false, reflected: None }
    }

    fn tell(&mut self) {
        if let Some(reflected) = self.reflected.take_if(|_| self.through.found) {
            reflected();
        }
    }
}

impl Body for Scrubbed {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        loop {
            let frame = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) if this.is_over || this.through.held.is_empty() => {
                    return Poll::Ready(None);
                }
                Poll::Ready(None) => None,
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(frame))) => Some(frame),
            };
            let Some(forms) = this.forms.clone() else { return Poll::Ready(frame.map(Ok)) };
            let out = match frame.map(Frame::into_data) {
                None => {
                    this.is_over = true;
                    this.through.pass(&forms, Bytes::new(), true)
                }
                Some(Ok(data)) => this.through.pass(&forms, data, false),
                Some(Err(other)) => {
                    let trailers = other.into_trailers().map(|mut trailers| {
                        this.through.found |= forms.mask_headers(&mut trailers);
                        trailers
                    });
                    this.tell();
                    return Poll::Ready(trailers.ok().map(|trailers| Ok(Frame::trailers(trailers))));
                }
            };
            this.tell();
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out))));
            }
            if this.is_over {
                return Poll::Ready(None);
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.through.held.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, held) = (self.body.size_hint(), self.through.held.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + held);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + held);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    const SECRET: &[u8] = b"s3\"cret/+=value";

    fn scrubbed(text: &[u8], size: usize) -> (Vec<u8>, bool) {
        let forms = Forms::of(&Secret::new(SECRET.to_vec()));
        let (mut through, mut out) = (Through::default(), vec![]);
        for piece in text.chunks(size) {
            out.extend_from_slice(&through.pass(&forms, Bytes::copy_from_slice(piece), false));
        }
        out.extend_from_slice(&through.pass(&forms, Bytes::new(), true));
        (out, through.found)
    }

    #[test]
    fn a_secret_comes_back_in_no_listed_form_however_it_is_cut() {
        let forms: Vec<Vec<u8>> = vec![
            SECRET.to_vec(),
            STANDARD.encode(SECRET).into_bytes(),
            STANDARD.encode([b"user:", SECRET].concat()).into_bytes(),
            STANDARD.encode([b"a:", SECRET, b"bc"].concat()).into_bytes(),
            percent(SECRET).to_vec(),
            serde_json::to_string(std::str::from_utf8(SECRET).unwrap()).unwrap().into_bytes(),
        ];
        for form in forms {
            let text = [b"<<<", &form[..], b">>> and what comes after"].concat();
            for size in 1..=text.len() {
                let (out, found) = scrubbed(&text, size);
                assert!(found && out.len() == text.len(), "{size}: {}", String::from_utf8_lossy(&out));
                let tail = &form[BEGUN + 3..form.len() - 4];
                assert!(memmem::find(&out, tail).is_none(), "{size}: {}", String::from_utf8_lossy(&out));
            }
        }
    }

    #[test]
    fn anything_else_goes_on_as_it_is() {
        let text = b"s3\"cret/+=valu s3\"cr s3\"cret/+=VALUE and s3\"cret/+";
        for size in 1..=text.len() {
            assert_eq!(scrubbed(text, size), (text.to_vec(), false), "{size}");
        }
    }

    #[test]
    fn headers_are_masked_and_short_secrets_are_left() {
        let forms = Forms::of(&Secret::new(b"longenough".to_vec()));
        let mut headers = HeaderMap::new();
        headers.insert("x-echo", HeaderValue::from_static("Bearer longenough!"));
        assert!(forms.mask_headers(&mut headers));
        assert_eq!(headers["x-echo"], "Bearer **********!");
        let short = Forms::of(&Secret::new(b"abc".to_vec()));
        assert!(!short.stand_in(b"abc") && short.begun_at_the_end(b"ab") == 0);
    }
}
