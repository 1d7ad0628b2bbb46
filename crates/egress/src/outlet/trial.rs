//! Whether there can be a proxy at all, for whoever wants to know before a sandbox needs one.

use std::io;
use std::time::{Duration, Instant};

use super::Settings;
use super::process::Proxy;
use crate::control::{Frame, FromProxy, ToProxy, VERSION};

/// How long a proxy may take until it is confined and ready. It takes a few milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no proxy.
#[derive(Debug, thiserror::Error)]
pub enum NoProxy {
    /// It can't be started.
    #[error("the egress proxy can't be started: {0}")]
    Start(#[from] io::Error),
    /// It says itself why it can't go on: untrusted text.
    #[error("the egress proxy gave up: {0}")]
    GaveUp(String),
    /// It ended without a word, said nothing for too long, or is of another version.
    #[error("the egress proxy never was ready")]
    Silent,
}

/// Starts a proxy as the first packet of a sandbox does, waits until it is confined and ready, and ends it. Gives how
/// long that took.
///
/// Not to be called within a runtime.
///
/// # Errors
///
/// [`NoProxy`]: nothing could leave any sandbox.
pub fn trial(settings: &Settings) -> Result<Duration, NoProxy> {
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let (proxy, mut said) = Proxy::start(&settings.program)?;
        proxy.say(ToProxy::Node(settings.node.clone()).encode(), None);
        match tokio::time::timeout(PATIENCE, said.recv()).await {
            Ok(Some(FromProxy::Ready(VERSION))) => Ok(began.elapsed()),
            Ok(Some(FromProxy::Failed(why))) => Err(NoProxy::GaveUp(why)),
            Ok(_) | Err(_) => Err(NoProxy::Silent),
        }
    })
}
