//! The end of a credential's time, while its run goes on: not every issuer knows of one, or ends what was begun before.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::issuer::Issuer;

/// How long is waited before what didn't revoke is asked again.
const AGAIN: Duration = Duration::from_secs(5);

/// Revokes a credential when its time is over. Dropped, it doesn't any more.
pub(super) struct Timer(AbortHandle);

impl Timer {
    /// Begins to wait, on the set of local tasks that this is called from.
    pub(super) fn start(until: SystemTime, issuer: Arc<dyn Issuer>, handle: String) -> Timer {
        let left = until.duration_since(SystemTime::now()).unwrap_or_default();
        let waiting = tokio::task::spawn_local(async move {
            sleep(left).await;
            // Whether it is dead is looked at when its run ends.
            while issuer.revoke(&handle).await.is_err() {
                sleep(AGAIN).await;
            }
        });
        Timer(waiting.abort_handle())
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.0.abort();
    }
}
