//! Captures from the WAL: connects to the slot, streams, and reconnects after errors.

mod buffer;
mod reader;
mod silence;
mod switch_check;
mod tasks;
mod visibility;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use metrics::gauge;
use pg_walstream::ReplicationError;
use tokio_postgres::Client;
use uuid::Uuid;

use super::acknowledgement::{AcknowledgedLsn, AcknowledgementLimit};
use super::client::LimitedClient;
use super::context::{Context, STAGE};
use super::decode::Decoder;
use super::error::CaptureError;
use super::fault_log::FaultLog;
use super::heartbeat::Heartbeats;
use super::lag::ReadUntil;
use super::replication::ReplicationConnection;
use super::tables;
use super::visibility::VisibilityPolicy;
use crate::config::Source;
use crate::domain::change::Batch;
use crate::domain::gap::Gap;
use crate::domain::publication::PublicationMembers;
use crate::failpoint::failpoint;
use crate::primary::error::PrimaryError;
use crate::primary::{catalog, conninfo};
use crate::repair::continuity;
use crate::repair::gaps::{self, Reports};
use crate::retry::Backoff;
use crate::store::{Store, StoreError};
use crate::{postgres, telemetry};

use reader::Reader;
use silence::SilenceLimit;
use tasks::BackgroundTasks;
use visibility::VisibilityGate;

const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// How often a standby replica tries to take the slot, and so how long a takeover takes.
const STAND_BY: Duration = Duration::from_secs(1);
/// After a session of this length, the waits between retries start over.
const STABLE: Duration = Duration::from_secs(10);
/// How long shutdown waits for the store to lower the acknowledgement limit.
const LAST_WRITE: Duration = Duration::from_secs(2);
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// For everything before the first change: two connections, the checks, and the start of the
/// stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(180);

/// Reads until shutdown, the switch to triggers, or a permanent error, such as a timeline other
/// than the first one. At the switch, returns the last batch, which is not sent.
pub(super) async fn run(context: &Context<'_>) -> Result<Option<Batch>, CaptureError> {
    let Context {
        source,
        store,
        shutdown,
        ..
    } = *context;

    let mut retries = RETRIES;
    let mut faults = FaultLog::default();
    let acknowledged = AcknowledgedLsn::default();
    let read_until = ReadUntil::default();
    let _reporting = read_until.report_lag(source);
    let timeline = OnceLock::new();
    let walsender = AtomicI32::new(0);
    let silence_limit = SilenceLimit::new(source);
    let mut is_first = true;

    // Enqueue stops when another process captures.
    while !context.batches.is_closed() {
        gauge!(telemetry::CAPTURE_CONNECTED).set(0);
        let started_at = Instant::now();
        let reader = Uuid::now_v7();

        let session = Session {
            context,
            acknowledged: &acknowledged,
            read_until: &read_until,
            timeline: &timeline,
            walsender: &walsender,
            silence_limit: &silence_limit,
            is_first,
            reader,
        };

        is_first = false;

        let result = {
            let mut session = std::pin::pin!(session.run(&mut faults));
            let result = shutdown.run_until_cancelled(&mut session).await;
            if result.is_none() {
                // Before the session is dropped, and the slot with it.
                lower_limit(store, source, reader, &acknowledged).await;
            }
            result
        };

        let error = match result {
            Some(Err(error)) => error,
            Some(Ok(Some(last))) => {
                gauge!(telemetry::CAPTURE_CONNECTED).set(0);
                return Ok(Some(last));
            }
            Some(Ok(None)) | None => break,
        };

        let error = report(context, &read_until, error).await;
        if !error.is_transient() && !error.is_drift() {
            gauge!(telemetry::CAPTURE_CONNECTED).set(0);
            return Err(error);
        }

        faults.log(&error);

        if started_at.elapsed() > STABLE {
            retries.reset();
        }

        let standing_by = matches!(error, CaptureError::SlotActive(_));
        let wait = if standing_by {
            STAND_BY
        } else {
            retries.next_wait()
        };

        if shutdown
            .run_until_cancelled(tokio::time::sleep(wait))
            .await
            .is_none()
        {
            break;
        }
    }

    gauge!(telemetry::CAPTURE_CONNECTED).set(0);
    Ok(None)
}

/// Reports to health why a session has ended, and records the gap that this reveals. Returns the
/// error that decides whether capture ends or is tried again.
async fn report(
    context: &Context<'_>,
    read_until: &ReadUntil,
    error: CaptureError,
) -> CaptureError {
    let Context {
        source,
        store,
        health,
        ..
    } = *context;

    let error = match error {
        error if error.is_missing_wal() => missing_wal(context).await,
        error if error.is_missing_publication() => missing_publication(context).await,
        error => error,
    };

    if let Some(gap) = error.gap_by_drift() {
        gaps::try_record(source, store, health, gap).await;
    }

    match error {
        // Another replica captures, and this one stands by.
        CaptureError::SlotActive(_) => {
            health.report_healthy(STAGE);
            read_until.forget();
        }
        _ => health.report_unhealthy(STAGE, error.readiness()),
    }

    error
}

/// Records that the primary no longer has WAL that the slot needs. Returns the error that ends
/// capture.
async fn missing_wal(context: &Context<'_>) -> CaptureError {
    let Context {
        source,
        store,
        health,
        ..
    } = *context;

    let recorded = async {
        let stored = store.checkpoint(&source.slot).await?;
        let at = stored.and_then(|checkpoint| checkpoint.progress.resume());
        let gap = Gap::WalMissing {
            slot: source.slot.clone(),
            at: at.unwrap_or_default(),
        };

        Ok::<_, StoreError>(gaps::record_and_end(source, store, health, gap, at).await)
    };

    recorded
        .await
        .map_or_else(CaptureError::from, CaptureError::from)
}

/// Records that the WAL at the checkpoint was written without the publication. Returns the error
/// that ends capture.
async fn missing_publication(context: &Context<'_>) -> CaptureError {
    let Context {
        source,
        store,
        health,
        ..
    } = *context;

    let gap = Gap::PublicationInterrupted {
        publication: source.publication.clone(),
        tables: "every table".to_owned(),
    };

    gaps::record_and_end(source, store, health, gap, None)
        .await
        .into()
}

/// Lowers the limit to the last acknowledgement, so that the next process notices if others move
/// the slot.
async fn lower_limit(store: &Store, source: &Source, reader: Uuid, acknowledged: &AcknowledgedLsn) {
    let Some(latest) = acknowledged.latest() else {
        return;
    };

    let lowered = async {
        let _ = failpoint!("shutdown_started_limit_not_lowered");
        store
            .lower_acknowledgement_limit(&source.slot, reader, latest)
            .await
    };

    if !matches!(
        tokio::time::timeout(LAST_WRITE, lowered).await,
        Ok(Ok(true))
    ) {
        tracing::debug!("the acknowledgement limit could not be lowered");
    }
}

/// One attempt to stream: the checks, the connection and the stream until it ends.
struct Session<'a> {
    context: &'a Context<'a>,
    acknowledged: &'a AcknowledgedLsn,
    read_until: &'a ReadUntil,
    /// The timeline of the first stream. Batches that were sent may not be stored yet.
    timeline: &'a OnceLock<u32>,
    /// The server process of the last stream. If it still holds the slot, the server has not
    /// noticed the end of that connection.
    walsender: &'a AtomicI32,
    silence_limit: &'a SilenceLimit,
    /// Whether enqueue has received nothing yet.
    is_first: bool,
    /// The id of this reader of the slot. Only the last one to claim the acknowledgement limit may
    /// move it.
    reader: Uuid,
}

impl Session<'_> {
    /// Streams until an error, until enqueue stops, or up to the switch to triggers, of which it
    /// returns the last batch.
    async fn run(&self, faults: &mut FaultLog) -> Result<Option<Batch>, CaptureError> {
        let Context {
            source,
            url,
            store,
            health,
            ..
        } = *self.context;

        let opened = tokio::time::timeout(OPEN_TIMEOUT, self.open(faults)).await;
        let streamed = match opened.unwrap_or(Err(CaptureError::Silent(OPEN_TIMEOUT))) {
            Ok(mut reader) => reader.run().await,
            Err(error) => Err(error),
        };

        match streamed {
            Err(CaptureError::Primary(PrimaryError::Replication(
                error @ ReplicationError::ReplicationSlot(_),
            ))) => {
                // The slot was dropped or invalidated since it was verified: verifying it again
                // records the gap.
                let client = LimitedClient::connect(url).await?;
                client
                    .run(|client| continuity::verify(client, source, store, health))
                    .await?;
                client
                    .run(|client| tables::verify(client, source, store, health))
                    .await?;

                Err(error.into())
            }
            other => other,
        }
    }

    /// Returns what the publication streams. Records a gap if something has left it since the last
    /// start, even if it has returned.
    async fn publication_members(
        &self,
        client: &Client,
    ) -> Result<PublicationMembers, CaptureError> {
        let Context {
            source,
            store,
            health,
            ..
        } = *self.context;

        let found = catalog::publication_members(client, source).await?;
        let known = store
            .publication_members(&source.slot)
            .await?
            .unwrap_or_default();
        let left = known.left_by(&found);
        if !left.is_empty() {
            let publication = source.publication.clone();
            let tables = left.join(", ");
            let gap = Gap::PublicationInterrupted {
                publication,
                tables,
            };

            gaps::record(source, store, health, &gap, None).await?;
        }

        store
            .store_publication_members(&source.slot, &found)
            .await?;
        Ok(found)
    }

    /// Verifies the slot and the tables, starts streaming, and claims the acknowledgement limit.
    async fn open(&self, faults: &mut FaultLog) -> Result<Reader<'_>, CaptureError> {
        let Context {
            source,
            url,
            store,
            health,
            ..
        } = *self.context;

        self.acknowledged.forget();
        let (client, target) = postgres::connect_to_host(url).await?;
        let verified = continuity::verify(&client, source, store, health).await?;

        if !continuity::has_commits(&client, source, store, health).await? {
            // Enqueue skips what it has committed, until it is started again.
            if !self.is_first {
                return Err(CaptureError::StoreBehind(source.slot.clone()));
            }

            tracing::warn!(
                "the store has lost commits of this process; the slot still has their changes, which are read again"
            );
            store.forget_committed();
        }

        let tables = tables::verify(&client, source, store, health).await?;

        if let Some(holder) = catalog::slot(&client, &source.slot)
            .await?
            .and_then(|slot| slot.active_pid)
        {
            return Err(self.slot_held(&client, holder).await);
        }

        // Read before the slot is taken: a process that claims the limit after this has taken the
        // slot after this.
        let previous_reader = store.acknowledgement_reader(&source.slot).await?;

        // On the server that was verified: another host of the URL may have another history.
        let conninfo = conninfo::replication_to(&target, &[])?;
        let opened =
            tokio::time::timeout(START_TIMEOUT, ReplicationConnection::open(&conninfo)).await;
        let mut stream = opened.map_err(|_| CaptureError::Silent(START_TIMEOUT))??;

        self.verify_timeline(&stream)?;

        // Read for each session: another process may have captured in between.
        let history = stream.timeline_history().await?;
        let (checkpoint, history) =
            continuity::enter_timeline(&client, stream.lineage(), history, source, store, health)
                .await?;
        let begin = checkpoint
            .progress
            .resume()
            .ok_or(PrimaryError::OutboxIsRead)?;
        let policy = VisibilityPolicy::new(source.await_visibility);

        policy.set_synchronous(
            catalog::commits(&client, stream.lineage())
                .await?
                .synchronous,
        );
        let started = tokio::time::timeout(
            START_TIMEOUT,
            stream.start(&source.slot, &source.publication, begin),
        )
        .await;

        started
            .map_err(|_| CaptureError::Silent(START_TIMEOUT))?
            .map_err(|error| self.start_error(error))?;
        tracing::info!(slot = source.slot, from = %begin, "reading changes");
        faults.clear();
        health.report_healthy(STAGE);
        gauge!(telemetry::CAPTURE_CONNECTED).set(1);

        // Read after the slot is taken: the previous reader may have moved it and raised the limit
        // until then.
        let slot = catalog::slot(&client, &source.slot).await?;
        self.walsender.store(
            slot.as_ref()
                .and_then(|slot| slot.active_pid)
                .unwrap_or_default(),
            Ordering::Relaxed,
        );

        self.acknowledged
            .reset(slot.and_then(|slot| slot.confirmed()).unwrap_or_default());
        failpoint!("slot_taken_limit_not_claimed")?;

        let Some(limit) = store
            .claim_acknowledgement(&source.slot, previous_reader, self.reader)
            .await?
        else {
            return Err(CaptureError::SlotActive(source.slot.clone()));
        };

        let members = self.publication_members(&client).await?;
        let acknowledged = self.acknowledged.clone();
        let period = source.heartbeat.0;
        let lineage = stream.lineage();
        let read_until = self.read_until.clone();

        let tasks = BackgroundTasks {
            heartbeats: Heartbeats::start(
                self.context,
                target,
                client,
                lineage,
                policy.clone(),
                read_until,
            ),
            gate: VisibilityGate::start(self.context, lineage.timeline, members, policy),
            limit: AcknowledgementLimit::start(
                store,
                &source.slot,
                self.reader,
                limit,
                acknowledged,
                period,
            ),
            gaps: Reports::start(source, store, health),
        };

        let clock_ahead = (!conninfo::is_by_socket(url)?).then_some(verified.clock_ahead);
        let decoder = Decoder::new(source, tables, history);

        Ok(Reader::new(
            self.context,
            stream,
            decoder,
            tasks,
            begin,
            clock_ahead,
            self.silence_limit,
        ))
    }

    /// Verifies that the stream has the timeline of this process's first stream. The same position
    /// has different changes on two timelines: neither batches nor looked-up rows of both may be
    /// mixed.
    fn verify_timeline(&self, stream: &ReplicationConnection) -> Result<(), CaptureError> {
        let to = stream.lineage().timeline;
        let from = *self.timeline.get_or_init(|| to);
        if from == to {
            Ok(())
        } else {
            Err(CaptureError::NewTimeline { from, to })
        }
    }

    /// Returns the error for a slot that a connection holds. If it is the last connection of this
    /// process, it is ended: the server would notice its end only after `wal_sender_timeout`, and
    /// nobody would read the slot until then.
    async fn slot_held(&self, client: &Client, holder: i32) -> CaptureError {
        let slot = self.context.source.slot.clone();

        if holder != self.walsender.load(Ordering::Relaxed) {
            return CaptureError::SlotActive(slot);
        }

        if let Err(error) = catalog::end_reader(client, &slot, holder).await {
            tracing::debug!(%error, "the earlier connection cannot be ended; the primary does so after wal_sender_timeout");
        }

        CaptureError::SlotLingers(slot)
    }

    fn start_error(&self, error: ReplicationError) -> CaptureError {
        const OBJECT_IN_USE: &str = "[55006]";

        if error.to_string().contains(OBJECT_IN_USE) {
            return CaptureError::SlotActive(self.context.source.slot.clone());
        }

        error.into()
    }
}
