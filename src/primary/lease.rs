//! The lease on reading the outbox: one process at a time reads it. The lease ends by the store's
//! clock. A process that notices late that it has lost the lease is harmless, because its claim on
//! the checkpoint is no longer valid.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::store::{Store, StoreError};

const LENGTH: Duration = Duration::from_secs(5);
const RENEWAL: Duration = Duration::from_secs(1);

/// A lease, renewed in the background until it is dropped.
pub(crate) struct CaptureLease {
    store: Store,
    slot: String,
    pub holder: Uuid,
    lost: CancellationToken,
    _renewal: AbortOnDropHandle<()>,
}

impl CaptureLease {
    /// Takes the lease. None if another process has it.
    pub async fn take(
        store: &Store,
        slot: &str,
        holder: Uuid,
    ) -> Result<Option<CaptureLease>, StoreError> {
        if !store.take_capture_lease(slot, holder, LENGTH).await? {
            return Ok(None);
        }

        let lost = CancellationToken::new();
        let renewal = tokio::spawn(renew(store.clone(), slot.to_owned(), holder, lost.clone()));
        let store = store.clone();
        let slot = slot.to_owned();

        Ok(Some(CaptureLease {
            store,
            slot,
            holder,
            lost,
            _renewal: AbortOnDropHandle::new(renewal),
        }))
    }

    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled()
    }

    /// Runs work that needs the lease. None if the lease was lost meanwhile.
    pub async fn run_until_lost<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.lost.run_until_cancelled(work).await
    }

    /// Releases the lease, so that another process can take over at once.
    pub async fn release(self) {
        let CaptureLease {
            store,
            slot,
            holder,
            _renewal,
            ..
        } = self;

        drop(_renewal);

        if let Err(error) = store.release_capture_lease(&slot, holder).await {
            tracing::debug!(%error, "the capture lease could not be released; it expires");
        }
    }
}

async fn renew(store: Store, slot: String, holder: Uuid, lost: CancellationToken) {
    let mut renewed = Instant::now();

    loop {
        tokio::time::sleep(RENEWAL).await;
        let started_at = Instant::now();

        match tokio::time::timeout(LENGTH, store.take_capture_lease(&slot, holder, LENGTH)).await {
            Ok(Ok(true)) => renewed = started_at,
            Ok(Ok(false)) => return lost.cancel(),
            Ok(Err(_)) | Err(_) => {}
        }

        if renewed.elapsed() > LENGTH {
            tracing::debug!(
                "the capture lease was not renewed in time; it stays valid until another process takes it"
            );
        }
    }
}
