//! Captures from the WAL: connects to the slot, streams, and reconnects after errors.

mod acknowledgement;
mod buffer;
mod decode;
mod deleted;
mod heartbeat;
mod reader;
mod replication;
mod silence;
mod switch_check;
mod tables;
mod visibility;

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use jiff::SignedDuration;
use pg_walstream::ReplicationError;
use tokio_postgres::Client;
use uuid::Uuid;

use self::acknowledgement::{AcknowledgedLsn, AcknowledgementLimit};
use self::decode::Decoder;
use self::heartbeat::Heartbeats;
use self::reader::{StreamTasks, WalReader};
use self::replication::ReplicationConnection;
use self::silence::SilenceLimit;
use self::visibility::{VerifiedPublication, VisibilityGate, VisibilityPolicy};
use super::client::LimitedClient;
use super::context::{CaptureContext, STAGE};
use super::error::CaptureError;
use super::session::{ReadUntil, Sessions};
use crate::domain::change::Batch;
use crate::domain::gap::Gap;
use crate::domain::lsn::{Lineage, Lsn, TimelineHistory};
use crate::domain::publication::PublicationMembers;
use crate::domain::table::Table;
use crate::failpoint::failpoint;
use crate::postgres::{self, Target};
use crate::primary::catalog::{self, PublicationVersionQuery, Slot};
use crate::primary::conninfo;
use crate::primary::error::PrimaryError;
use crate::repair::continuity;
use crate::repair::gaps::Reports;
use crate::store::StoreError;
use crate::store::processes::new_claim;

/// How long shutdown waits for the store to lower the acknowledgement limit.
const LAST_WRITE: Duration = Duration::from_secs(2);
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// For everything before the first change: two connections, the checks, and the start of the
/// stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(180);

/// Reads until shutdown, the switch to triggers, or a permanent error, such as a timeline other
/// than the first one. At the switch, returns the last batch, which is not sent.
pub(super) async fn run(context: &CaptureContext<'_>) -> Result<Option<Batch>, CaptureError> {
    let shutdown = context.shutdown;
    let mut sessions = Sessions::new(context);
    let mut session = WalSession {
        context,
        acknowledged: AcknowledgedLsn::default(),
        read_until: sessions.read_until.clone(),
        timeline: OnceLock::new(),
        walsender: AtomicI32::new(0),
        silence_limit: SilenceLimit::new(context.source),
        is_first: true,
        reader: Uuid::nil(),
    };

    // Enqueue stops when another process captures.
    while !context.batches.is_closed() {
        let started_at = Instant::now();
        session.reader = new_claim();

        let result = {
            let mut running = std::pin::pin!(session.run(&mut sessions));
            let result = shutdown.run_until_cancelled(&mut running).await;
            if result.is_none() {
                // Before the stream is dropped, and the slot with it.
                session.lower_limit().await;
            }
            result
        };

        session.is_first = false;

        let error = match result {
            Some(Ok(last)) => return Ok(last),
            Some(Err(error)) => explain(context, error).await,
            None => break,
        };

        sessions.report(&error);

        if !error.is_transient() && !error.is_drift() {
            return Err(error);
        }

        let wait = sessions.wait_after(&error, started_at.elapsed());
        if shutdown
            .run_until_cancelled(tokio::time::sleep(wait))
            .await
            .is_none()
        {
            break;
        }
    }

    Ok(None)
}

/// Records the gap that the end of a session reveals. Returns the error that decides whether
/// capture ends or is tried again.
async fn explain(context: &CaptureContext<'_>, error: CaptureError) -> CaptureError {
    let error = match error {
        error if error.is_missing_wal() => missing_wal(context).await,
        error if error.is_missing_publication() => missing_publication(context).await,
        error => error,
    };

    if let Some(gap) = error.gap_by_drift() {
        context.gaps.try_record(gap).await;
    }

    error
}

/// Records that the primary no longer has WAL that the slot needs. Returns the error that ends
/// capture.
async fn missing_wal(context: &CaptureContext<'_>) -> CaptureError {
    let gaps = context.gaps;

    let recorded = async {
        let stored = gaps.store.checkpoint(&gaps.source.slot).await?;
        let at = stored.and_then(|checkpoint| checkpoint.progress.resume());
        let gap = Gap::WalMissing {
            slot: gaps.slot(),
            at: at.unwrap_or_default(),
        };

        Ok::<_, StoreError>(gaps.record_and_end(gap, at).await)
    };

    recorded
        .await
        .map_or_else(CaptureError::from, CaptureError::from)
}

/// Records that the WAL at the checkpoint was written without the publication. Returns the error
/// that ends capture.
async fn missing_publication(context: &CaptureContext<'_>) -> CaptureError {
    let gaps = context.gaps;

    let gap = Gap::PublicationInterrupted {
        publication: gaps.source.publication.clone(),
        tables: "every table".to_owned(),
    };

    gaps.record_and_end(gap, None).await.into()
}

/// What was verified before a stream is opened.
struct Verified {
    publication: PublicationVersionQuery,
    /// The publication's version before the tables were verified.
    version: Option<String>,
    tables: HashMap<u32, Table>,
    clock_ahead: SignedDuration,
}

/// A stream that has started.
struct Streaming {
    stream: ReplicationConnection,
    begin: Lsn,
    history: TimelineHistory,
}

/// An attempt to stream, the checks, the connection and the stream until it ends, and what is known
/// from those before it.
struct WalSession<'a> {
    context: &'a CaptureContext<'a>,
    acknowledged: AcknowledgedLsn,
    read_until: ReadUntil,
    /// The timeline of the first stream. Batches that were sent may not be stored yet.
    timeline: OnceLock<u32>,
    /// The server process of the last stream. If it still holds the slot, the server has not
    /// noticed the end of that connection.
    walsender: AtomicI32,
    silence_limit: SilenceLimit,
    /// Whether enqueue has received nothing yet.
    is_first: bool,
    /// The id of this reader of the slot. Only the last one to claim the acknowledgement limit may
    /// move it.
    reader: Uuid,
}

impl WalSession<'_> {
    /// Streams until an error, until enqueue stops, or up to the switch to triggers, of which it
    /// returns the last batch.
    async fn run(&self, sessions: &mut Sessions<'_>) -> Result<Option<Batch>, CaptureError> {
        let gaps = self.context.gaps;

        let opened = tokio::time::timeout(OPEN_TIMEOUT, self.open(sessions)).await;
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
                let client = LimitedClient::connect(self.context.url).await?;
                client
                    .run(|client| continuity::verify(client, gaps))
                    .await?;
                client.run(|client| tables::verify(client, gaps)).await?;

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
        let gaps = self.context.gaps;
        let source = gaps.source;

        let found = catalog::publication_members(client, source).await?;
        let known = gaps
            .store
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

            gaps.record(&gap, None).await?;
        }

        gaps.store
            .store_publication_members(&source.slot, &found)
            .await?;
        Ok(found)
    }

    /// Verifies the slot and the tables, starts streaming, and claims the acknowledgement limit.
    async fn open(&self, sessions: &mut Sessions<'_>) -> Result<WalReader<'_>, CaptureError> {
        let CaptureContext {
            source, url, store, ..
        } = *self.context;

        self.acknowledged.forget();
        let (client, target) = postgres::connect_to_host(url).await?;
        let Verified {
            publication,
            version,
            tables,
            clock_ahead,
        } = self.verify(&client).await?;

        // Read before the slot is taken: a process that claims the limit after this has taken the
        // slot after this.
        let previous_reader = store.acknowledgement_reader(&source.slot).await?;
        let policy = VisibilityPolicy::new(source.await_visibility);
        let Streaming {
            stream,
            begin,
            history,
        } = self.stream(&client, &target, &policy).await?;

        tracing::info!(slot = source.slot, from = %begin, "reading changes");
        sessions.started();
        self.context.health.report_healthy(STAGE);

        let limit = self.claim_limit(&client, previous_reader).await?;
        let publication = VerifiedPublication {
            query: publication,
            version,
            members: self.publication_members(&client).await?,
        };
        let tasks = self.start_tasks(client, target, stream.lineage(), policy, limit, publication);

        let clock_ahead = (!conninfo::is_by_socket(url)?).then_some(clock_ahead);
        let decoder = Decoder::new(source, tables, history);

        Ok(WalReader::new(
            self.context,
            stream,
            decoder,
            tasks,
            begin,
            clock_ahead,
            &self.silence_limit,
        ))
    }

    /// Lowers the limit to the last acknowledgement, so that the next process notices if others
    /// move the slot.
    async fn lower_limit(&self) {
        let CaptureContext { source, store, .. } = *self.context;
        let Some(latest) = self.acknowledged.latest() else {
            return;
        };

        let lowered = async {
            let _ = failpoint!("shutdown_started_limit_not_lowered");
            store
                .lower_acknowledgement_limit(&source.slot, self.reader, latest)
                .await
        };

        if !matches!(
            tokio::time::timeout(LAST_WRITE, lowered).await,
            Ok(Ok(true))
        ) {
            tracing::debug!("the acknowledgement limit could not be lowered");
        }
    }

    /// Verifies that the slot continues where the store ends, that no other process reads it, and
    /// that it has the changes of every table.
    async fn verify(&self, client: &Client) -> Result<Verified, CaptureError> {
        let gaps = self.context.gaps;
        let source = gaps.source;

        let verified = continuity::verify(client, gaps).await?;

        if !continuity::has_commits(client, gaps).await? {
            // Enqueue skips what it has committed, until it is started again.
            if !self.is_first {
                return Err(CaptureError::StoreBehind(source.slot.clone()));
            }

            tracing::warn!(
                "the store has lost commits of this process; the slot still has their changes, which are read again"
            );
            gaps.store.forget_committed();
        }

        // Read first: a later change differs from it.
        let publication = PublicationVersionQuery::prepare(client, source).await?;
        let version = publication.run(client).await?.map(|found| found.version);
        let tables = tables::verify(client, gaps).await?;
        let slot = catalog::slot(client, &source.slot).await?;

        if let Some(holder) = slot.and_then(|slot| slot.active_pid) {
            return Err(self.slot_held(client, holder).await);
        }

        Ok(Verified {
            publication,
            version,
            tables,
            clock_ahead: verified.clock_ahead,
        })
    }

    /// Starts streaming from the checkpoint, on the server that was verified: another host of the
    /// URL may have another history.
    async fn stream(
        &self,
        client: &Client,
        target: &Target,
        policy: &VisibilityPolicy,
    ) -> Result<Streaming, CaptureError> {
        let gaps = self.context.gaps;
        let source = gaps.source;

        let conninfo = conninfo::replication(target, &[])?;
        let opened =
            tokio::time::timeout(START_TIMEOUT, ReplicationConnection::open(&conninfo)).await;
        let mut stream = opened.map_err(|_| CaptureError::Silent(START_TIMEOUT))??;

        self.verify_timeline(&stream)?;

        // Read for each session: another process may have captured in between.
        let history = stream.timeline_history().await?;
        let (checkpoint, history) =
            continuity::enter_timeline(client, stream.lineage(), history, gaps).await?;
        let begin = checkpoint
            .progress
            .resume()
            .ok_or(PrimaryError::OutboxIsRead)?;

        let commits = catalog::commits(client, stream.lineage()).await?;
        policy.set_synchronous(commits.synchronous);

        let start = stream.start(&source.slot, &source.publication, begin);
        tokio::time::timeout(START_TIMEOUT, start)
            .await
            .map_err(|_| CaptureError::Silent(START_TIMEOUT))?
            .map_err(|error| self.start_error(error))?;

        Ok(Streaming {
            stream,
            begin,
            history,
        })
    }

    /// Claims the acknowledgement limit from the previous reader, and returns it.
    async fn claim_limit(
        &self,
        client: &Client,
        previous_reader: Option<Uuid>,
    ) -> Result<Lsn, CaptureError> {
        let CaptureContext { source, store, .. } = *self.context;

        // Read after the slot is taken: the previous reader may have moved it and raised the limit
        // until then.
        let slot = catalog::slot(client, &source.slot).await?;
        let holder = slot.as_ref().and_then(|slot| slot.active_pid);
        let confirmed = slot.as_ref().and_then(Slot::confirmed);

        self.walsender
            .store(holder.unwrap_or_default(), Ordering::Relaxed);
        self.acknowledged.reset(confirmed.unwrap_or_default());
        failpoint!("slot_taken_limit_not_claimed")?;

        let claimed = store
            .claim_acknowledgement(&source.slot, previous_reader, self.reader)
            .await?;
        claimed.ok_or_else(|| CaptureError::SlotActive(source.slot.clone()))
    }

    /// Starts the tasks beside the stream.
    fn start_tasks(
        &self,
        client: Client,
        target: Target,
        lineage: Lineage,
        policy: VisibilityPolicy,
        limit: Lsn,
        publication: VerifiedPublication,
    ) -> StreamTasks {
        let CaptureContext { source, store, .. } = *self.context;
        let read_until = self.read_until.clone();
        let gate_policy = policy.clone();

        StreamTasks {
            heartbeats: Heartbeats::start(self.context, target, lineage, policy, read_until),
            gate: VisibilityGate::start(
                self.context,
                client,
                lineage.timeline,
                publication,
                gate_policy,
            ),
            limit: AcknowledgementLimit::start(
                store,
                &source.slot,
                self.reader,
                limit,
                self.acknowledged.clone(),
                source.heartbeat.0,
            ),
            gaps: Reports::start(self.context.gaps),
        }
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
