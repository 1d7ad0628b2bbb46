//! Surrogates that are where they aren't swapped: in a request to a host that has no credential, or in a body. Each is
//! worth nothing, so none of them does harm; that a program sends one there is what somebody wants to know.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use cofferdam_core::egress::{
    Denial, DenialCode, RequestPermit, Rules, may_hold_a_credential, query_may_hold_a_credential,
};
use cofferdam_core::surrogate::{self, Watch};
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::proxy::sandbox::Sandbox;

/// The refusal of a request with a surrogate in its head, to a host that none is for, or of what may be a credential where
/// the host has one of the run's by another rule. Where its own rule has one, who has the
/// credential judges where it stands.
pub(crate) fn in_head(request: &Request<Incoming>, permit: &RequestPermit, rules: &Rules) -> Option<Denial> {
    if permit.terms().credential().is_some() {
        return None;
    }
    let target = request.uri().path_and_query().map_or(&b""[..], |target| target.as_str().as_bytes());
    let headers = request.headers();
    let is_there = surrogate::stands_in(target)
        || headers.values().any(|value| surrogate::stands_in(value.as_bytes()))
        || headers.keys().any(|name| surrogate::stands_in(name.as_str().as_bytes()));
    if is_there {
        return Some(permit.denial(DenialCode::CredentialWrongHost));
    }
    // A host that has a credential of the run's takes no other, also by a rule without.
    let is_foreign = || {
        headers.keys().any(|name| may_hold_a_credential(name.as_str()))
            || query_may_hold_a_credential(request.uri().query().unwrap_or_default())
    };
    (rules.have_a_credential(permit.to()) && is_foreign())
        .then(|| permit.denial(DenialCode::ForeignCredential))
}

/// A body that ends before the last byte of a surrogate in it.
pub(crate) struct Watched {
    body: Incoming,
    watch: Watch,
    found: Arc<Found>,
}

/// That a surrogate was in a body, for whoever answers its request.
pub(crate) struct Found {
    denial: Denial,
    sandbox: Arc<Sandbox>,
    door: cofferdam_core::egress::Door,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It wasn't.
    NotYet,
    /// It was, and nobody has said so.
    Unsaid,
    /// The request is answered: what is found from now on is written down at once.
    Answered,
}

impl Watched {
    /// Watches the body of a permitted request.
    pub(crate) fn new(
        body: Incoming,
        sandbox: &Arc<Sandbox>,
        permit: &RequestPermit,
    ) -> (Watched, Arc<Found>) {
        let code = match permit.terms().credential() {
            Some(_) => DenialCode::CredentialWrongPlace,
            None => DenialCode::CredentialWrongHost,
        };
        let found = Arc::new(Found {
            denial: permit.denial(code),
            sandbox: sandbox.clone(),
            door: permit.to().door(),
            state: Mutex::new(State::NotYet),
        });
        (Watched { body, watch: Watch::default(), found: found.clone() }, found)
    }
}

impl Found {
    /// The refusal, if there is one to say.
    pub(crate) fn take(&self) -> Option<Denial> {
        (self.replace(State::Answered) == State::Unsaid).then(|| self.denial.clone())
    }

    /// The request was answered.
    pub(crate) fn is_answered(&self) {
        if let Some(denial) = self.take() {
            self.sandbox.deny_now(&denial, self.door);
        }
    }

    fn find(&self) {
        match self.replace(State::Unsaid) {
            State::NotYet | State::Unsaid => {}
            State::Answered => self.is_answered(),
        }
    }

    fn replace(&self, state: State) -> State {
        std::mem::replace(&mut *self.state.lock().unwrap_or_else(PoisonError::into_inner), state)
    }
}

/// Why a body ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error(transparent)]
    Read(#[from] hyper::Error),
    #[error("a surrogate is in it")]
    Surrogate,
}

impl Body for Watched {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame?;
        let is_there = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => self.watch.sees(data),
            (_, Some(trailers)) => trailers.values().any(|value| surrogate::stands_in(value.as_bytes())),
            _ => false,
        };
        if is_there {
            self.found.find();
            return Poll::Ready(Some(Err(BodyError::Surrogate)));
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
