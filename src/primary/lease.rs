//! One process reads the outbox: the one that has the lease. The clock is the store's. A process that is late to notice that it
//! lost the lease harms nothing: the checkpoint is where it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::store::{Store, StoreError};

const LENGTH: Duration = Duration::from_secs(5);
const RENEWAL: Duration = Duration::from_secs(1);

/// Renewed as long as it lives.
pub(crate) struct Lease {
    store: Store,
    slot: String,
    pub holder: Uuid,
    lost: Arc<AtomicBool>,
    _renewal: AbortOnDropHandle<()>,
}

impl Lease {
    /// The lease, if no other process has it.
    pub async fn take(store: &Store, slot: &str, holder: Uuid) -> Result<Option<Lease>, StoreError> {
        if !store.take_capture_lease(slot, holder, LENGTH).await? {
            return Ok(None);
        }
        let lost = Arc::new(AtomicBool::new(false));
        let renewal = tokio::spawn(renew(store.clone(), slot.to_owned(), holder, Arc::clone(&lost)));
        let (store, slot) = (store.clone(), slot.to_owned());
        Ok(Some(Lease { store, slot, holder, lost, _renewal: AbortOnDropHandle::new(renewal) }))
    }

    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Lets another process take over at once.
    pub async fn release(self) {
        let Lease { store, slot, holder, _renewal, .. } = self;
        drop(_renewal);
        if let Err(error) = store.release_capture_lease(&slot, holder).await {
            tracing::debug!(%error, "the capture lease runs out by itself");
        }
    }
}

async fn renew(store: Store, slot: String, holder: Uuid, lost: Arc<AtomicBool>) {
    let mut renewed = Instant::now();
    loop {
        tokio::time::sleep(RENEWAL).await;
        let asked = Instant::now();
        match tokio::time::timeout(LENGTH, store.take_capture_lease(&slot, holder, LENGTH)).await {
            Ok(Ok(true)) => renewed = asked,
            Ok(Ok(false)) => return lost.store(true, Ordering::Relaxed),
            // The store does not answer now.
            Ok(Err(_)) | Err(_) => {}
        }
        if renewed.elapsed() > LENGTH {
            tracing::debug!(
                "the capture lease could not be renewed in time; it is kept until another process takes it"
            );
        }
    }
}
