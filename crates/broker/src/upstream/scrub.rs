//! Takes a secret out of what a host answers: some hosts say back what they were sent. Best effort: what a host encodes
//! in a way that isn't listed here goes through, and so does what it compresses although it was asked not to.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use cofferdam_core::secret::Secret;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{HeaderMap, HeaderValue};
use memchr::memmem;
use tokio::time::{Sleep, sleep};
use zeroize::Zeroizing;

/// The shortest text that is looked for: shorter ones are in anything.
const SHORTEST: usize = 8;

/// What stands in place of each byte, so that lengths stay what was announced.
const MASK: u8 = b'*';

/// How long the end of what came is held up where nothing more comes: enough for what a host says at once to arrive.
const HOLD: Duration = Duration::from_millis(20);

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

/// What goes through, and what is held up: the end of what came, as long as a form but for its last byte, whatever it is.
/// If that depended on what it is, a program that has its guesses echoed would learn the secret by what comes late.
#[derive(Default)]
struct Through {
    /// The last bytes that went on.
    gone: Zeroizing<Vec<u8>>,
    held: Zeroizing<Vec<u8>>,
    found: bool,
}

impl Through {
    /// What may go on of a piece; all of what is held too where nothing more comes for now.
    fn pass(&mut self, forms: &Forms, piece: &[u8], holds: bool) -> Bytes {
        let (longest, from) = (forms.longest().saturating_sub(1), self.gone.len());
        let mut all = Zeroizing::new([&self.gone[..], &self.held, piece].concat());
        self.found |= forms.mask(&mut all);
        let held = if holds { longest.min(all.len() - from) } else { 0 };
        let until = all.len() - held;
        let out = Bytes::copy_from_slice(&all[from..until]);
        self.held = Zeroizing::new(all[until..].to_vec());
        self.gone = Zeroizing::new(all[until.saturating_sub(longest)..until].to_vec());
        out
    }
}

/// A body without the secret.
pub(crate) struct Scrubbed {
    body: Incoming,
    forms: Option<Rc<Forms>>,
    through: Through,
    /// When what is held goes on, if nothing more comes.
    until: Option<Pin<Box<Sleep>>>,
    /// What comes when the data is over.
    trailers: Option<HeaderMap>,
    /// Told once, if the secret was there.
    reflected: Option<Box<dyn FnOnce()>>,
}

impl Scrubbed {
    /// Scrubs a body of these forms, and tells if one was there.
    pub(crate) fn new(body: Incoming, forms: Rc<Forms>, reflected: impl FnOnce() + 'static) -> Self {
        Scrubbed { forms: Some(forms), reflected: Some(Box::new(reflected)), ..Scrubbed::as_it_is(body) }
    }

    /// A body of a request without the secret.
    pub(crate) fn as_it_is(body: Incoming) -> Self {
        Scrubbed {
            body,
            forms: None,
            through: Through::default(),
            until: None,
            trailers: None,
            reflected: None,
        }
    }

    fn tell(&mut self) {
        if let Some(reflected) = self.reflected.take_if(|_| self.through.found) {
            reflected();
        }
    }

    /// What of a piece goes on, and maybe of what was held before it.
    fn data(&mut self, forms: &Forms, piece: &[u8], holds: bool) -> Option<Frame<Bytes>> {
        let out = self.through.pass(forms, piece, holds);
        self.until = None;
        self.tell();
        (!out.is_empty()).then(|| Frame::data(out))
    }

    /// What is held, when it was long enough.
    fn waits(&mut self, forms: &Forms, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if self.through.held.is_empty() {
            return Poll::Pending;
        }
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(HOLD)));
        ready!(until.as_mut().poll(context));
        Poll::Ready(self.data(forms, &[], false))
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
        let Some(forms) = this.forms.clone() else { return Pin::new(&mut this.body).poll_frame(context) };
        loop {
            if let Some(trailers) = this.trailers.take() {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            let frame = match Pin::new(&mut this.body).poll_frame(context) {
                Poll::Pending => {
                    let held = ready!(this.waits(&forms, context));
                    return Poll::Ready(held.map(Ok));
                }
                // What is held is lost with what went wrong, whatever it is.
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(frame))) => frame,
                Poll::Ready(None) => return Poll::Ready(this.data(&forms, &[], false).map(Ok)),
            };
            let data = match frame.into_data() {
                Ok(data) => this.data(&forms, &data, true),
                Err(other) => {
                    this.trailers = other.into_trailers().ok().map(|mut trailers| {
                        this.through.found |= forms.mask_headers(&mut trailers);
                        trailers
                    });
                    this.data(&forms, &[], false)
                }
            };
            if let Some(data) = data {
                return Poll::Ready(Some(Ok(data)));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.through.held.is_empty() && self.trailers.is_none() && self.body.is_end_stream()
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
            out.extend_from_slice(&through.pass(&forms, piece, true));
        }
        out.extend_from_slice(&through.pass(&forms, &[], false));
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
                assert!(memmem::find(&out, &form).is_none(), "{size}: {}", String::from_utf8_lossy(&out));
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
    fn what_is_held_up_depends_on_nothing_but_how_much_came() {
        let forms = Forms::of(&Secret::new(SECRET.to_vec()));
        let passes = |text: &[u8]| {
            let mut through = Through::default();
            text.chunks(3).map(|piece| through.pass(&forms, piece, true).len()).collect::<Vec<_>>()
        };
        let guess = [b"|".as_slice(), &SECRET[..SECRET.len() - 1]].concat();
        let other = vec![b'x'; guess.len()];
        assert_eq!(passes(&guess), passes(&other));
        // What went on before its end came is masked from there.
        let mut through = Through::default();
        let mut out = through.pass(&forms, &SECRET[..6], true).to_vec();
        out.extend_from_slice(&through.pass(&forms, &[], false));
        out.extend_from_slice(&through.pass(&forms, &SECRET[6..], false));
        assert_eq!(out, [&SECRET[..6], &vec![MASK; SECRET.len() - 6][..]].concat());
    }

    #[test]
    fn headers_are_masked_and_short_secrets_are_left() {
        let forms = Forms::of(&Secret::new(b"longenough".to_vec()));
        let mut headers = HeaderMap::new();
        headers.insert("x-echo", HeaderValue::from_static("Bearer longenough!"));
        assert!(forms.mask_headers(&mut headers));
        assert_eq!(headers["x-echo"], "Bearer **********!");
        let short = Forms::of(&Secret::new(b"abc".to_vec()));
        assert!(!short.stand_in(b"abc"));
    }
}
