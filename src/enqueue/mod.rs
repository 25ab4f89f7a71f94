//! Changes in, one store transaction out: the events they raise, a delivery for each subscribed webhook, and the checkpoint.
//!
//! Only when that transaction is durable does the capture stage learn how far it may acknowledge.

mod derive;
mod fan_out;
pub mod repair;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use metrics::{counter, gauge};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::clock::Clock;
use crate::domain::change::Batch;
use crate::domain::delivery::Lease;
use crate::domain::event::{Event, UserId};
use crate::domain::ledger::LedgerChanges;
use crate::domain::lsn::Checkpoint;
use crate::handoff::Handoff;
use crate::health::{GAP, Health};
use crate::lookup::{LookupError, Lookups};
use crate::retry::Backoff;
use crate::store::addons::change_addons;
use crate::store::enqueue::{
    NewLease, Subscription, Unrouted, advance_checkpoint, claim_distributed, insert_deliveries, insert_events,
    insert_missed, insert_unrouted, prepare_inserts, subscriptions,
};
use crate::store::ledger::{change_ledger, forget_ledger};
use crate::store::{GenericClient, Store, StoreError};
use crate::telemetry::{self, recurring};
use crate::traces::Tracer;

use derive::{Derivation, Raised};
use fan_out::{EVENTS_AT_ONCE, FannedOut, Reserved, fan_out};

/// Changes that go into one transaction at most; what has piled up meanwhile goes together.
const MAX_CHANGES: usize = 1_500;
const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How long the store has for a batch at first. Twice as long after each time that was not enough: it may be slow, not dead.
const FIRST_LIMIT: Duration = Duration::from_secs(30);
const LONGEST_LIMIT: Duration = Duration::from_secs(600);
/// How often the lag is measured while a batch is not stored.
const LAG_INTERVAL: Duration = Duration::from_secs(1);
/// Under which name this stage says how it is.
const STAGE: &str = "enqueue";
/// A warm start takes some ten milliseconds. Changes wait for it no longer than this.
const WARM_UP: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum EnqueueError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("the checkpoint of slot {0} was moved by another process: it captures now")]
    Superseded(String),
    #[error("the store has no checkpoint for slot {0}: run `walhook setup`")]
    NoCheckpoint(String),
}

impl EnqueueError {
    /// What may be said of it to anybody.
    fn reason(&self) -> String {
        match self {
            EnqueueError::Lookup(
                error @ (LookupError::ColumnGone { .. } | LookupError::TableGone { .. } | LookupError::Invisible(_)),
            ) => error.to_string(),
            _ => "events cannot be stored now".to_owned(),
        }
    }

    /// Whether the same again may go well: everything but a verdict.
    fn is_transient(&self) -> bool {
        match self {
            EnqueueError::Store(StoreError::Corrupt(_)) => false,
            EnqueueError::Store(_) => true,
            EnqueueError::Lookup(error) => error.is_transient(),
            EnqueueError::Superseded(_) | EnqueueError::NoCheckpoint(_) => false,
        }
    }
}

pub struct Enqueue<C> {
    pub store: Store,
    pub lookups: Lookups,
    pub slot: String,
    /// Whether the ledger of last seen states is kept.
    pub ledger: bool,
    /// Where fresh deliveries go at once; without a dispatcher in this process they are left for others to claim.
    pub handoff: Option<Handoff>,
    pub lease_length: Duration,
    pub health: Health,
    pub tracer: Tracer,
    pub clock: C,
}

impl<C: Clock> Enqueue<C> {
    /// Works until capture ends; once `shutdown` has begun, what cannot be stored at once is left to be read again.
    /// `durable` learns the position that may be acknowledged.
    pub async fn run(
        mut self,
        mut batches: mpsc::Receiver<Batch>,
        durable: watch::Sender<Option<Checkpoint>>,
        shutdown: CancellationToken,
    ) -> Result<(), EnqueueError> {
        let mut checkpoint: Option<Checkpoint> = None;
        // What fails or takes long is done again when it is needed.
        let _ = tokio::time::timeout(WARM_UP, self.warm_up()).await;
        let (mut is_late, mut ahead) = (false, None);
        while let Some(batch) = receive(&mut batches, &mut ahead, is_late).await {
            if !self.store_with_retries(&batch, &mut checkpoint, &shutdown).await? {
                break;
            }
            durable.send_replace(Some(batch.checkpoint));
            if let Some(last) = batch.changes.last() {
                let lag = self.lag(last.committed_at);
                show_lag(lag);
                is_late = lag > LAG_INTERVAL;
            }
        }
        Ok(())
    }

    /// Opens connections, reads the looked-up columns' types and prepares statements, so that the first event does not wait for
    /// that.
    async fn warm_up(&mut self) -> Result<(), EnqueueError> {
        let Enqueue { lookups, store, .. } = self;
        let lookups = async { lookups.warm_up().await.map_err(EnqueueError::from) };
        let store = async { Ok(store.prepare_enqueue().await?) };
        tokio::try_join!(lookups, store)?;
        Ok(())
    }

    fn lag(&self, committed_at: Timestamp) -> Duration {
        self.clock.now().duration_since(committed_at).try_into().unwrap_or_default()
    }

    /// Whether the batch is in the store; it is not when shutdown came first.
    async fn store_with_retries(
        &mut self,
        batch: &Batch,
        checkpoint: &mut Option<Checkpoint>,
        shutdown: &CancellationToken,
    ) -> Result<bool, EnqueueError> {
        let (mut retries, mut limit, mut derivation) = (RETRIES, FIRST_LIMIT, None);
        let health = self.health.stage(STAGE, "storing events");
        loop {
            let result = self.store_measuring_lag(batch, checkpoint, &mut derivation, limit).await;
            let Err(error) = result else {
                health.working();
                return Ok(true);
            };
            if !error.is_transient() {
                return Err(error);
            }
            // The commit may have gone through all the same: the store knows.
            *checkpoint = None;
            if matches!(error, EnqueueError::Store(StoreError::Silent(_))) {
                limit = (limit * 2).min(LONGEST_LIMIT);
            }
            if health.starts_failing(error.reason()) {
                tracing::warn!(%error, lsn = %batch.checkpoint.position.commit, "storing events fails; retrying until it succeeds");
            }
            if !retries.wait_unless(shutdown).await {
                return Ok(false);
            }
        }
    }

    /// Stores a batch, and shows the growing lag meanwhile.
    async fn store_measuring_lag(
        &mut self,
        batch: &Batch,
        checkpoint: &mut Option<Checkpoint>,
        derivation: &mut Option<Derivation>,
        limit: Duration,
    ) -> Result<(), EnqueueError> {
        let begun = Instant::now();
        let lag = batch.changes.first().map_or(Duration::ZERO, |oldest| self.lag(oldest.committed_at));
        let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + LAG_INTERVAL, LAG_INTERVAL);
        let mut stored = std::pin::pin!(self.store_batch(batch, checkpoint, derivation, limit));
        loop {
            tokio::select! {
                biased;
                result = &mut stored => return result,
                _ = ticks.tick() => show_lag(lag + begun.elapsed()),
            }
        }
    }

    async fn store_batch(
        &mut self,
        batch: &Batch,
        known: &mut Option<Checkpoint>,
        derivation: &mut Option<Derivation>,
        limit: Duration,
    ) -> Result<(), EnqueueError> {
        let checkpoint = match *known {
            Some(checkpoint) => checkpoint,
            None => self.store.in_time(limit, stored_checkpoint(&self.store, &self.slot, batch)).await?,
        };
        if !batch.is_on_timeline(checkpoint.lineage) {
            return Err(EnqueueError::Superseded(self.slot.clone()));
        }
        if batch.checkpoint.position <= checkpoint.position {
            *known = Some(checkpoint);
            return Ok(());
        }
        if derivation.is_none() && batch.checkpoint.lineage != checkpoint.lineage {
            // What was looked up may be of changes that the new timeline does not have.
            self.lookups.forget();
        }
        let begun = self.clock.now();
        if derivation.take_if(|derivation| derivation.stored != checkpoint.position).is_some() {
            // Another process has stored a part: what lookups have followed is not what they are going to.
            self.lookups.forget();
        }
        self.lookups.doubt(self.health.is_unhealthy(GAP));
        let derivation = derivation.get_or_insert_with(|| Derivation::new(batch, checkpoint.position));
        derivation.finish(&mut self.lookups, batch).await?;
        let is_first = known.is_none();
        let (store, raised) = (self.store.clone(), &mut derivation.raised);
        store.in_time(limit, self.commit(batch, &checkpoint, raised, is_first)).await?;
        self.tell(&derivation.raised.events, begun);
        *known = Some(batch.checkpoint);
        Ok(())
    }

    async fn commit(
        &mut self,
        batch: &Batch,
        from: &Checkpoint,
        raised: &mut Raised,
        is_first: bool,
    ) -> Result<(), EnqueueError> {
        let Raised { events, unrouted, ignored, distributed, addons, ledger, once } = raised;
        let lease = NewLease { token: Uuid::now_v7(), seconds: self.lease_length.as_secs_f64() };
        let transaction = self.store.begun().await?;
        // Nothing is asked of a connection that knows them. The end can go out behind them then.
        prepare_inserts(&*transaction).await?;
        // Before the database reads its own clock: no lease is thought longer than it is, and no webhook's state younger.
        let read_at = Instant::now();
        let held = Lease { token: lease.token, until: read_at + self.lease_length };
        let reserved = Reserved::new(self.handoff.as_ref(), held, read_at);
        let window = batch.window.as_ref();
        let (kept, is_kept) = oneshot::channel();
        // All that needs no answer goes out at once, and what needs one while the server is at work on the rest.
        let raise = async {
            let (advanced, subscriptions, first_time) = tokio::try_join!(
                biased;
                advance_checkpoint(&*transaction, &self.slot, from, &batch.checkpoint, window),
                subscriptions_to(&*transaction, events),
                claim_distributed(&*transaction, distributed),
            )?;
            if !advanced {
                return Err(EnqueueError::Superseded(self.slot.clone()));
            }
            once.keep_first(events, first_time);
            // Behind everything else, or it would not be part of the transaction.
            let commit = async {
                match is_kept.await {
                    Ok(()) => transaction.commit().await,
                    // It has failed, and with it all of this.
                    Err(_) => std::future::pending().await,
                }
            };
            let when = if is_first { HandOver::BehindCommit } else { HandOver::AtOnce };
            Ok(store_events(&*transaction, events, subscriptions, lease, reserved, when, commit).await?)
        };
        let keep = async {
            let ledger = self.ledger.then_some(&*ledger);
            tokio::try_join!(
                biased;
                insert_unrouted(&*transaction, unrouted),
                change_addons(&*transaction, addons),
                keep_ledger(&*transaction, ledger, is_first),
            )?;
            let _ = kept.send(());
            Ok(())
        };
        let begin = async { Ok(transaction.begin().await?) };
        tokio::try_join!(biased; begin, raise, keep)?;
        transaction.end();
        count(events, unrouted, ignored);
        Ok(())
    }

    /// Says of each event in the store where it came from.
    fn tell(&self, events: &[Event], begun: Timestamp) {
        for Event { id, kind, position, .. } in events {
            tracing::debug!(event = %id, %kind, lsn = %position.commit, ordinal = position.ordinal, "stored");
        }
        self.tracer.stored(events, begun, self.clock.now());
    }
}

/// Moves the ledger on, or gives up one that is not kept any more.
async fn keep_ledger(
    transaction: &impl GenericClient,
    changes: Option<&LedgerChanges>,
    is_first: bool,
) -> Result<(), StoreError> {
    match changes {
        Some(changes) => change_ledger(transaction, changes).await,
        None if is_first => forget_ledger(transaction).await,
        None => Ok(()),
    }
}

/// The webhooks of those whom the events are for.
async fn subscriptions_to(
    transaction: &impl GenericClient,
    events: &[Event],
) -> Result<HashMap<UserId, Vec<Subscription>>, StoreError> {
    let mut users: Vec<&str> = events.iter().map(|event| &*event.user.0).collect();
    users.sort_unstable();
    users.dedup();
    if users.is_empty() { Ok(HashMap::new()) } else { subscriptions(transaction, &users).await }
}

/// Where the store is. Two processes give the same number to different windows: positions compare only under one claim.
async fn stored_checkpoint(store: &Store, slot: &str, batch: &Batch) -> Result<Checkpoint, EnqueueError> {
    let reader = batch.window.as_ref().map(|window| window.reader);
    let stored = store.checkpoint_of_reader(slot, reader).await?;
    stored.ok_or_else(|| match reader {
        Some(_) => EnqueueError::Superseded(slot.to_owned()),
        None => EnqueueError::NoCheckpoint(slot.to_owned()),
    })
}

fn show_lag(lag: Duration) {
    gauge!(telemetry::CAPTURE_LAG).set(lag.as_secs_f64());
}

/// The next batch. Resets a high lag when none arrives for a while.
async fn receive(batches: &mut mpsc::Receiver<Batch>, ahead: &mut Option<Batch>, is_late: bool) -> Option<Batch> {
    if is_late {
        match tokio::time::timeout(LAG_INTERVAL, next_batch(batches, ahead)).await {
            Ok(batch) => return batch,
            Err(_) => show_lag(Duration::ZERO),
        }
    }
    next_batch(batches, ahead).await
}

/// The next batch, with those that wait behind it as far as one transaction takes them. One that does not go on where they end,
/// because capture has connected again and reads again what is not stored yet, stays in `ahead`.
async fn next_batch(batches: &mut mpsc::Receiver<Batch>, ahead: &mut Option<Batch>) -> Option<Batch> {
    let mut batch = match ahead.take() {
        Some(batch) => batch,
        None => batches.recv().await?,
    };
    while batch.changes.len() < MAX_CHANGES {
        let Ok(more) = batches.try_recv() else { break };
        if !more.follows(&batch) {
            *ahead = Some(more);
            break;
        }
        batch.changes.extend(more.changes);
        batch.checkpoint = more.checkpoint;
        batch.transaction = more.transaction.or(batch.transaction);
        batch.window = more.window;
    }
    Some(batch)
}

/// Counts what a batch came to.
fn count(events: &[Event], unrouted: &[Unrouted], ignored: &[&'static str]) {
    for event in events {
        counter!(telemetry::EVENTS, "event" => event.kind.as_str()).increment(1);
    }
    for reason in ignored {
        counter!(telemetry::IGNORED_TRANSITIONS, "reason" => *reason).increment(1);
    }
    if let Some(first) = unrouted.first() {
        counter!(telemetry::UNROUTED_EVENTS).increment(unrouted.len() as u64);
        recurring!(
            warn,
            reason = first.reason,
            table = first.table,
            row = first.row,
            lsn = %first.position.commit,
            "events without an owner: they are kept in walhook.unrouted_event"
        );
    }
}

/// When the dispatcher gets deliveries.
enum HandOver {
    /// Requests do not wait for the store. Were the transaction lost, the platform's log would still have it all, and deliveries
    /// under the same ids would follow from it.
    AtOnce,
    /// The last transaction failed, or there was none yet: receivers are not to be told again with every try.
    BehindCommit,
}

/// Stores events with their deliveries, part by part; `commit` goes out with the last of them.
async fn store_events(
    transaction: &impl GenericClient,
    events: &[Event],
    subscriptions: HashMap<UserId, Vec<Subscription>>,
    lease: NewLease,
    mut reserved: Reserved<'_>,
    when: HandOver,
    commit: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    let mut fan_out = |part| fan_out(part, &subscriptions, |event, delivery| reserved.take(event, delivery));
    let mut parts = events.chunks(EVENTS_AT_ONCE);
    let last = parts.next_back().unwrap_or_default();
    for part in parts {
        insert(transaction, part, &fan_out(part), lease, false).await?;
    }
    let fanned_out = fan_out(last);
    let store_last = async { tokio::try_join!(biased; insert(transaction, last, &fanned_out, lease, false), commit) };
    match when {
        HandOver::AtOnce => {
            let _committing = reserved.hand_over(subscriptions);
            store_last.await?;
        }
        HandOver::BehindCommit => {
            store_last.await?;
            reserved.hand_over(subscriptions);
        }
    }
    Ok(())
}

/// Events with what follows from them; `repaired` as in `insert_events`.
async fn insert(
    transaction: &impl GenericClient,
    events: &[Event],
    fanned_out: &FannedOut,
    lease: NewLease,
    repaired: bool,
) -> Result<(), StoreError> {
    tokio::try_join!(
        biased;
        insert_events(transaction, events, repaired),
        insert_deliveries(transaction, &fanned_out.deliveries, lease),
        insert_missed(transaction, &fanned_out.missed),
    )?;
    Ok(())
}
