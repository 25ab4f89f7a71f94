//! How far idle log may be acknowledged.
//!
//! What the server is told to forget must be told apart later from what somebody else made it forget. Where events are stored
//! the checkpoint moves along; idle log is acknowledged without a write to the store, so a limit is stored ahead of it, and
//! nothing is acknowledged beyond. A slot found further on was moved by others: that is a gap.
//!
//! What cannot be told: somebody who moves the slot while we are away, by less than the limit lies ahead of what we had
//! acknowledged. An orderly end brings the limit back to exactly that; what is left is such a move after a crash of ours.
//! Nothing on the primary remembers which session moved a slot, and to write down every acknowledgement would be a write a
//! second for nothing.
//!
//! Only one connection moves the limit: the last one to have claimed it, which it does once it has the slot. A replica that
//! stood still while another took over can neither raise nor lower it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::domain::lsn::Lsn;
use crate::primary::slot::ACKNOWLEDGEMENT_MARGIN as ROOM;
use crate::store::Store;

/// How far the server was told to forget, over all connections of this process.
#[derive(Clone, Debug, Default)]
pub(super) struct Said(Arc<AtomicU64>);

impl Said {
    pub fn latest(&self) -> Option<Lsn> {
        Some(Lsn(self.0.load(Ordering::Relaxed))).filter(|lsn| *lsn > Lsn::ZERO)
    }

    fn say(&self, lsn: Lsn) {
        self.0.fetch_max(lsn.0, Ordering::Relaxed);
    }

    /// A stream begins: `confirmed` is where the slot was by then, whoever had moved it there.
    pub fn begin(&self, confirmed: Lsn) {
        self.0.store(confirmed.0, Ordering::Relaxed);
    }

    /// Nothing yet: another process may go on from here.
    pub fn forget(&self) {
        self.begin(Lsn::ZERO);
    }
}

/// The limit in force. Raised by a task of its own: whoever acknowledges never waits for the store.
pub(super) struct Limit {
    stored: watch::Receiver<Lsn>,
    wanted: watch::Sender<Lsn>,
    said: Said,
    _task: AbortOnDropHandle<()>,
}

impl Limit {
    /// Raises the limit for `reader` at most once a `period`.
    pub fn start(store: &Store, slot: &str, reader: Uuid, stored: Lsn, said: Said, period: Duration) -> Limit {
        let (writes, stored) = watch::channel(stored);
        let (wanted, asked) = watch::channel(Lsn::ZERO);
        let task = tokio::spawn(raise(store.clone(), slot.to_owned(), reader, asked, writes, period));
        Limit { stored, wanted, said, _task: AbortOnDropHandle::new(task) }
    }

    /// How much of `wanted` may be acknowledged now that everything up to `durable` is in the store.
    pub fn grant(&self, durable: Lsn, wanted: Lsn) -> Lsn {
        let limit = durable.max(*self.stored.borrow());
        if wanted > durable && limit.0.saturating_sub(wanted.0) < ROOM / 2 {
            self.wanted.send_replace(wanted);
        }
        let granted = wanted.min(limit);
        self.said.say(granted);
        granted
    }
}

async fn raise(
    store: Store,
    slot: String,
    reader: Uuid,
    mut asked: watch::Receiver<Lsn>,
    stored: watch::Sender<Lsn>,
    period: Duration,
) {
    let mut before = None;
    while asked.changed().await.is_ok() {
        let wanted = *asked.borrow_and_update();
        // Twice what went by since the last time, so that a busy server is not held back until the next.
        let passed = before.map_or(0, |before: Lsn| wanted.0.saturating_sub(before.0));
        let limit = Lsn(wanted.0.saturating_add(ROOM.max(2 * passed)));
        match store.raise_acknowledgement_limit(&slot, reader, limit).await {
            Ok(true) => {
                before = Some(wanted);
                stored.send_replace(limit);
            }
            // It has the slot too, so that this stream is about to fail.
            Ok(false) => return tracing::debug!("another reader moves the limit of acknowledgement now"),
            Err(error) => tracing::debug!(%error, "the limit of acknowledgement is not raised now"),
        }
        tokio::time::sleep(period).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(stored: u64) -> (Limit, watch::Receiver<Lsn>, Said) {
        let (_, stored) = watch::channel(Lsn(stored));
        let (wanted, asked) = watch::channel(Lsn::ZERO);
        let said = Said::default();
        let task = AbortOnDropHandle::new(tokio::spawn(async {}));
        (Limit { stored, wanted, said: said.clone(), _task: task }, asked, said)
    }

    #[tokio::test]
    async fn nothing_is_acknowledged_beyond_checkpoint_and_limit_and_more_room_is_asked_for_in_time() {
        let (limit, asked, said) = limit(2 * ROOM);
        assert_eq!(limit.grant(Lsn(5), Lsn(5)), Lsn(5));
        assert_eq!(limit.grant(Lsn(5), Lsn(9)), Lsn(9));
        assert!(!asked.has_changed().unwrap(), "there is room enough");
        assert_eq!(limit.grant(Lsn(5), Lsn(2 * ROOM - 1)), Lsn(2 * ROOM - 1));
        assert_eq!(*asked.borrow(), Lsn(2 * ROOM - 1));
        assert_eq!(limit.grant(Lsn(5), Lsn(3 * ROOM)), Lsn(2 * ROOM));
        assert_eq!(said.latest(), Some(Lsn(2 * ROOM)));
        assert_eq!(limit.grant(Lsn(4 * ROOM), Lsn(4 * ROOM)), Lsn(4 * ROOM), "what is stored needs no limit");
    }
}
