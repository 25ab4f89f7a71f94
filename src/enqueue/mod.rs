//! Stores the events of captured changes: one transaction has the events, a delivery for each
//! subscribed webhook, and the checkpoint.
//!
//! Capture learns only after the commit how far it may acknowledge.

mod batches;
mod derive;
mod error;
mod fan_out;
pub mod repair;
mod save;
mod sieve;
pub mod unrouted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use metrics::{counter, gauge};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::Clock;
use crate::domain::change::Batch;
use crate::domain::event::Event;
use crate::domain::ledger::LedgerChanges;
use crate::domain::position::Checkpoint;
use crate::failpoint::failpoint;
use crate::handoff::{Handoff, HandoffBatch};
use crate::lookup::Lookups;
use crate::retry::Backoff;
use crate::store::checkpoint::advance_checkpoint;
use crate::store::delivery::NewLease;
use crate::store::enqueue::{claim_distributed, prepare_inserts};
use crate::store::ignored::add_ignored;
use crate::store::ledger::{change_ledger, forget_ledger};
use crate::store::log::{notify_readers, stored_events};
use crate::store::lookup_rows::{change_addons, change_lookup_rows};
use crate::store::unrouted::insert_unrouted;
use crate::store::{GenericClient, Store, StoreError};
use crate::telemetry::health::{GAP, Health};
use crate::telemetry::traces::Tracer;
use crate::telemetry::{self, Activity};

use batches::Batches;
use derive::{Derivation, Raised};
use save::{count, store_events, subscriptions_of};
use sieve::sieve;

pub use derive::derive_supposed;
pub use error::EnqueueError;

const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// The first time limit for storing a batch. It doubles each time it is exceeded: the store may be
/// slow rather than down.
const FIRST_LIMIT: Duration = Duration::from_secs(30);
const LONGEST_LIMIT: Duration = Duration::from_secs(600);
/// How often the lag is reported while a batch is being stored.
const LAG_INTERVAL: Duration = Duration::from_secs(1);
/// The name of this stage in the health report.
const STAGE: &str = "enqueue";
/// The limit of the warm-up, which usually takes some ten milliseconds. Changes wait for it.
const WARM_UP: Duration = Duration::from_secs(1);

/// The stage that stores events.
pub struct Enqueue<C> {
    pub store: Store,
    /// None if a log is read, whose events are derived.
    pub lookups: Option<Lookups>,
    pub slot: String,
    /// Whether the ledger is kept.
    pub ledger: bool,
    /// Longer data of an event cannot be sent, and is not stored whole.
    pub max_data: usize,
    /// Where fresh deliveries are handed off. None without a dispatcher in this process: other
    /// replicas claim them.
    pub handoff: Option<Handoff>,
    pub lease_length: Duration,
    pub health: Health,
    pub tracer: Tracer,
    pub clock: C,
}

impl<C: Clock> Enqueue<C> {
    /// Stores batches until capture ends. After `shutdown`, a batch that cannot be stored at once
    /// is dropped and read again by the next process. `durable` receives each stored checkpoint, up
    /// to which capture may acknowledge.
    pub async fn run(
        mut self,
        batches: mpsc::Receiver<Batch>,
        durable: watch::Sender<Option<Checkpoint>>,
        shutdown: CancellationToken,
    ) -> Result<(), EnqueueError> {
        let mut checkpoint: Option<Checkpoint> = None;

        // The first batch prepares what fails or times out here.
        match tokio::time::timeout(WARM_UP, self.warm_up()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::info!(%error, "warming up fails; the first batch prepares what is missing")
            }
            Err(_) => {
                tracing::info!(limit = ?WARM_UP, "warming up takes too long; the first batch prepares what is missing")
            }
        }

        let mut is_late = false;
        let mut batches = Batches::new(batches);
        let stored = Arc::new(Notify::new());
        // The store of a process that delivers is no log.
        let _waking = self.handoff.is_none().then(|| {
            AbortOnDropHandle::new(tokio::spawn(wake_readers(
                self.store.clone(),
                stored.clone(),
            )))
        });

        loop {
            let received = match is_late {
                true => {
                    batches
                        .receive_or(LAG_INTERVAL, || show_lag(Duration::ZERO))
                        .await
                }
                false => batches.receive().await,
            };

            let Some(batch) = received else { return Ok(()) };
            if !self
                .store_with_retries(&batch, &mut checkpoint, &shutdown)
                .await?
            {
                return Ok(());
            }

            let lag = batch.committed().map(|(_, last)| self.lag(last));
            let _ = failpoint!("events_committed_capture_not_notified");
            durable.send_replace(Some(batch.checkpoint));

            if let Some(lag) = lag {
                stored.notify_one();
                show_lag(lag);
                is_late = lag > LAG_INTERVAL;
            }
        }
    }

    /// Opens connections, reads the types of looked-up columns and prepares statements, so that the
    /// first event does not wait for them.
    async fn warm_up(&mut self) -> Result<(), EnqueueError> {
        let Enqueue { lookups, store, .. } = self;
        let lookups = async {
            match lookups {
                Some(lookups) => Ok::<_, EnqueueError>(lookups.warm_up().await?),
                None => Ok(()),
            }
        };
        let store = async { Ok(store.prepare_enqueue().await?) };

        tokio::try_join!(lookups, store)?;
        Ok(())
    }

    fn lag(&self, committed_at: Timestamp) -> Duration {
        self.clock
            .now()
            .duration_since(committed_at)
            .try_into()
            .unwrap_or_default()
    }

    /// Stores a batch. Retries until it is stored, and returns true, or until shutdown, and returns
    /// false.
    async fn store_with_retries(
        &mut self,
        batch: &Batch,
        checkpoint: &mut Option<Checkpoint>,
        shutdown: &CancellationToken,
    ) -> Result<bool, EnqueueError> {
        let mut retries = RETRIES;
        let mut limit = FIRST_LIMIT;
        let mut derivation = None;
        let mut is_sieved = false;
        let storing = Activity::new("storing events");

        loop {
            let result = self
                .store_measuring_lag(batch, checkpoint, &mut derivation, limit)
                .await;
            let Err(error) = result else {
                self.health.report_healthy(STAGE);
                storing.succeeded();
                return Ok(true);
            };

            if !error.is_transient() {
                // The end of this stage is reported by its caller. If the stage starts again, it
                // has stored all that it has received.
                self.health.report_healthy(STAGE);
                return Err(error);
            }

            // The commit may have succeeded: read the checkpoint again.
            *checkpoint = None;

            if matches!(&error, EnqueueError::Store(error) if error.refuses_data()) && !is_sieved {
                is_sieved = true;
                let store = self.store.clone();
                match sieve(&store, derivation.as_mut(), batch).await {
                    Ok(0) => {}
                    Ok(refused) => {
                        tracing::warn!(%error, refused, "the store refuses rows of a batch: its other rows are stored");
                        continue;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "looking for the rows that the store refuses fails")
                    }
                }
            }

            if matches!(error, EnqueueError::Store(StoreError::Silent(_))) {
                limit = (limit * 2).min(LONGEST_LIMIT);
            }

            self.health.report_unhealthy(STAGE, error.public_reason());

            if storing.starts_failing() {
                tracing::warn!(%error, progress = %batch.checkpoint.progress, "storing events fails; retrying until it succeeds");
            }

            if !retries.wait_unless(shutdown).await {
                return Ok(false);
            }
        }
    }

    /// Stores a batch, and reports the growing lag until it is stored.
    async fn store_measuring_lag(
        &mut self,
        batch: &Batch,
        checkpoint: &mut Option<Checkpoint>,
        derivation: &mut Option<Derivation>,
        limit: Duration,
    ) -> Result<(), EnqueueError> {
        let started_at = Instant::now();
        let lag = batch
            .committed()
            .map_or(Duration::ZERO, |(oldest, _)| self.lag(oldest));
        let mut ticks =
            tokio::time::interval_at(tokio::time::Instant::now() + LAG_INTERVAL, LAG_INTERVAL);
        let mut stored = std::pin::pin!(self.store_batch(batch, checkpoint, derivation, limit));

        loop {
            tokio::select! {
                biased;
                result = &mut stored => return result,
                _ = ticks.tick() => show_lag(lag + started_at.elapsed()),
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
        let checkpoint = match known {
            Some(checkpoint) => checkpoint.clone(),
            None => {
                self.store
                    .in_time(limit, stored_checkpoint(&self.store, &self.slot, batch))
                    .await?
            }
        };

        if known.is_none() && self.store.has_lost_commits(&checkpoint) {
            return Err(EnqueueError::StoreBehind(self.slot.clone()));
        }

        failpoint!("batch_received_events_not_derived")?;

        if !batch.is_on_timeline(checkpoint.lineage) {
            return Err(EnqueueError::Superseded(self.slot.clone()));
        }

        if checkpoint.progress.has_reached(&batch.checkpoint.progress) {
            // `known` is not set: the next transaction may be the process's first, which deletes a
            // ledger that is no longer kept.
            return Ok(());
        }

        let started_at = self.clock.now();

        // Another process has stored a part of the batch.
        derivation.take_if(|derivation| derivation.stored != checkpoint.progress);
        let derivation =
            derivation.get_or_insert_with(|| Derivation::new(batch, &checkpoint, self.max_data));

        if let Some(lookups) = &mut self.lookups {
            lookups
                .set_incomplete(self.health.is_unhealthy(GAP))
                .await?;
            derivation.finish(lookups, batch).await?;
        }

        let is_first = known.is_none();
        let store = self.store.clone();
        let raised = &mut derivation.raised;

        store
            .in_time(limit, self.commit(batch, &checkpoint, raised, is_first))
            .await?;
        self.store.note_committed(&batch.checkpoint);
        self.trace(&derivation.raised.events, started_at);
        *known = Some(batch.checkpoint.clone());

        Ok(())
    }

    async fn commit(
        &mut self,
        batch: &Batch,
        from: &Checkpoint,
        raised: &mut Raised,
        is_first: bool,
    ) -> Result<(), EnqueueError> {
        let Raised {
            events,
            unrouted,
            ignored,
            distributed,
            addons,
            ledger,
            lookup_rows,
            once,
            ..
        } = raised;

        let transaction = self.store.pipelined_transaction().await?;

        // Needs no round trip on a connection that has prepared them. The commit can then be sent
        // right after the inserts.
        prepare_inserts(&*transaction).await?;

        // Before the database reads its clock: the lease and the webhooks' state must not seem
        // younger than they are.
        let read_at = Instant::now();
        let lease = NewLease::starting_now(self.lease_length);
        let handoff = HandoffBatch::new(self.handoff.as_ref(), lease.lease, read_at);
        let (rest_stored, is_rest_stored) = oneshot::channel();

        // Statements that need no answer are sent at once, the others while the server executes
        // them.
        let raise = async {
            let (advanced, subscriptions, first_time, repeated) = tokio::try_join!(
                biased;
                advance_checkpoint(&*transaction, &self.slot, from, &batch.checkpoint, batch.reader),
                subscriptions_of(&*transaction, events, true),
                claim_distributed(&*transaction, distributed),
                stored_events(&*transaction, events),
            )?;
            if !advanced {
                return Err(EnqueueError::Superseded(self.slot.clone()));
            }

            once.keep_first(events, first_time);
            events.retain(|event| !repeated.contains(&event.id));
            counter!(telemetry::LOG_REPEATED).increment(repeated.len() as u64);
            failpoint!("checkpoint_advanced_events_not_inserted")?;

            // Sent last: a statement after it would not be part of the transaction.
            let commit = async {
                match is_rest_stored.await {
                    Ok(()) => transaction.commit().await,
                    // `store_rest` has failed, which drops this future.
                    Err(_) => std::future::pending().await,
                }
            };

            Ok(store_events(&*transaction, events, subscriptions, lease, handoff, commit).await?)
        };

        let store_rest = async {
            let ledger = self.ledger.then_some(&*ledger);
            tokio::try_join!(
                biased;
                insert_unrouted(&*transaction, unrouted),
                add_ignored(&*transaction, ignored),
                change_addons(&*transaction, addons),
                update_ledger(&*transaction, ledger, is_first),
                change_lookup_rows(&*transaction, lookup_rows),
            )?;

            failpoint!("events_inserted_commit_not_sent")?;
            let _ = rest_stored.send(());
            Ok(())
        };

        let begin = async { Ok(transaction.begin().await?) };
        tokio::try_join!(biased; begin, raise, store_rest)?;
        transaction.release();
        count(events, unrouted, ignored);

        Ok(())
    }

    /// Logs and traces stored events.
    fn trace(&self, events: &[Event], started_at: Timestamp) {
        for Event {
            id, kind, position, ..
        } in events
        {
            let lsn = position.commit().map(tracing::field::display);
            tracing::debug!(event = %id, %kind, lsn, ordinal = position.ordinal(), "stored");
        }

        self.tracer.stored(events, started_at, self.clock.now());
    }
}

/// Wakes the processes that read this store's events as a log, each time that some are stored. Not
/// in the same transaction: the server lets one transaction at a time notify, and its commit may wait
/// for a standby.
async fn wake_readers(store: Store, stored: Arc<Notify>) {
    loop {
        stored.notified().await;
        if let Err(error) = notify_readers(&store).await {
            tracing::debug!(%error, "readers of the log are not woken: they look after their source.poll_interval");
        }
    }
}

/// Updates the ledger. If the ledger is no longer kept, deletes it with the first transaction.
async fn update_ledger(
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

/// Reads the checkpoint from which the batch continues. Two processes give the same number to
/// different windows: positions in the outbox compare only under one claim.
async fn stored_checkpoint(
    store: &Store,
    slot: &str,
    batch: &Batch,
) -> Result<Checkpoint, EnqueueError> {
    let stored = store.checkpoint_of_reader(slot, batch.reader).await?;
    stored.ok_or_else(|| match batch.reader {
        Some(_) => EnqueueError::Superseded(slot.to_owned()),
        None => EnqueueError::NoCheckpoint(slot.to_owned()),
    })
}

fn show_lag(lag: Duration) {
    gauge!(telemetry::CAPTURE_LAG).set(lag.as_secs_f64());
}
