//! Limits how far idle WAL may be acknowledged.
//!
//! If something other than Walhook advances the slot, the server discards WAL that Walhook has not
//! read: a gap. A restart detects it by comparing the slot with how far Walhook can have
//! acknowledged. WAL with events is acknowledged up to the stored checkpoint. Idle WAL is
//! acknowledged without a write to the store. Therefore a limit ahead of it is stored first, and
//! nothing is acknowledged beyond the limit. A slot beyond the limit was advanced by something
//! else.
//!
//! Not detected: while Walhook is down, the slot is advanced, or dropped and created again, by less
//! than the distance between the last acknowledgement and the limit. An orderly shutdown lowers the
//! limit to the last acknowledgement, so this can only happen after a crash. PostgreSQL records
//! neither which session advanced a slot nor when the slot was created, and storing each
//! acknowledgement would cost a write per second. After a failover, `repair::continuity` compares
//! the slot with the end of the earlier timeline instead.
//!
//! Only the connection that claimed the limit last may change it. A connection claims the limit
//! after it has taken the slot. A replica that stalled while another one took over can neither
//! raise nor lower the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::domain::lsn::Lsn;
use crate::primary::slot::ACKNOWLEDGEMENT_MARGIN as MARGIN;
use crate::store::Store;

/// The LSN that was acknowledged last, over all connections of this process.
#[derive(Clone, Debug, Default)]
pub(super) struct AcknowledgedLsn(Arc<AtomicU64>);

impl AcknowledgedLsn {
    /// Returns the LSN. None between streams.
    pub fn latest(&self) -> Option<Lsn> {
        Some(Lsn(self.0.load(Ordering::Relaxed))).filter(|lsn| *lsn > Lsn::ZERO)
    }

    fn advance(&self, lsn: Lsn) {
        self.0.fetch_max(lsn.0, Ordering::Relaxed);
    }

    /// Sets the LSN to the slot's confirmed LSN, when a stream begins.
    pub fn reset(&self, confirmed: Lsn) {
        self.0.store(confirmed.0, Ordering::Relaxed);
    }

    /// Forgets the LSN between streams, when another process may acknowledge.
    pub fn forget(&self) {
        self.reset(Lsn::ZERO);
    }
}

/// Bounds the acknowledgements of one stream. A task raises the stored limit: acknowledgements do
/// not wait for the store.
pub(super) struct AcknowledgementLimit {
    /// The limit in the store.
    stored: watch::Receiver<Lsn>,
    /// Passes the task the LSN from which it raises the limit.
    wanted: watch::Sender<Lsn>,
    acknowledged: AcknowledgedLsn,
    _task: AbortOnDropHandle<()>,
}

impl AcknowledgementLimit {
    /// Starts a task that raises the limit for `reader` at most once per `period`.
    pub fn start(
        store: &Store,
        slot: &str,
        reader: Uuid,
        stored: Lsn,
        acknowledged: AcknowledgedLsn,
        period: Duration,
    ) -> AcknowledgementLimit {
        let (writes, stored) = watch::channel(stored);
        let (wanted, requests) = watch::channel(Lsn::ZERO);

        let task = tokio::spawn(raise(
            store.clone(),
            slot.to_owned(),
            reader,
            requests,
            writes,
            period,
        ));

        AcknowledgementLimit {
            stored,
            wanted,
            acknowledged,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Returns how far the WAL up to `wanted` may be acknowledged if everything up to `durable` is
    /// stored. Requests a higher limit if less than half of the margin is left.
    pub fn grant(&self, durable: Lsn, wanted: Lsn) -> Lsn {
        let limit = durable.max(*self.stored.borrow());
        if wanted > durable && limit.0.saturating_sub(wanted.0) < MARGIN / 2 {
            self.wanted.send_replace(wanted);
        }

        let granted = wanted.min(limit);
        self.acknowledged.advance(granted);

        granted
    }
}

async fn raise(
    store: Store,
    slot: String,
    reader: Uuid,
    mut requests: watch::Receiver<Lsn>,
    stored: watch::Sender<Lsn>,
    period: Duration,
) {
    let mut previous = None;

    while requests.changed().await.is_ok() {
        let wanted = *requests.borrow_and_update();

        // Twice the WAL since the previous time: on a busy server, acknowledgements do not wait for
        // the next period.
        let advanced = previous.map_or(0, |previous: Lsn| wanted.0.saturating_sub(previous.0));
        let limit = Lsn(wanted.0.saturating_add(MARGIN.max(2 * advanced)));
        match store
            .raise_acknowledgement_limit(&slot, reader, limit)
            .await
        {
            Ok(true) => {
                previous = Some(wanted);
                stored.send_replace(limit);
            }
            // Another reader has taken the slot: this stream is about to fail.
            Ok(false) => {
                return tracing::debug!("another reader has claimed the acknowledgement limit");
            }
            Err(error) => tracing::debug!(%error, "the acknowledgement limit could not be raised"),
        }

        tokio::time::sleep(period).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(stored: u64) -> (AcknowledgementLimit, watch::Receiver<Lsn>, AcknowledgedLsn) {
        let (_, stored) = watch::channel(Lsn(stored));
        let (wanted, requests) = watch::channel(Lsn::ZERO);
        let acknowledged = AcknowledgedLsn::default();
        let task = AbortOnDropHandle::new(tokio::spawn(async {}));
        let limit = AcknowledgementLimit {
            stored,
            wanted,
            acknowledged: acknowledged.clone(),
            _task: task,
        };

        (limit, requests, acknowledged)
    }

    #[tokio::test]
    async fn nothing_is_acknowledged_beyond_checkpoint_and_limit_and_the_limit_is_raised_in_time() {
        let (limit, requests, acknowledged) = limit(2 * MARGIN);
        assert_eq!(limit.grant(Lsn(5), Lsn(5)), Lsn(5));
        assert_eq!(limit.grant(Lsn(5), Lsn(9)), Lsn(9));
        assert!(
            !requests.has_changed().unwrap(),
            "the limit is far enough away"
        );
        assert_eq!(
            limit.grant(Lsn(5), Lsn(2 * MARGIN - 1)),
            Lsn(2 * MARGIN - 1)
        );
        assert_eq!(*requests.borrow(), Lsn(2 * MARGIN - 1));
        assert_eq!(limit.grant(Lsn(5), Lsn(3 * MARGIN)), Lsn(2 * MARGIN));
        assert_eq!(acknowledged.latest(), Some(Lsn(2 * MARGIN)));
        assert_eq!(
            limit.grant(Lsn(4 * MARGIN), Lsn(4 * MARGIN)),
            Lsn(4 * MARGIN),
            "the checkpoint needs no limit"
        );
    }
}
