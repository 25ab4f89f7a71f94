//! Capture by triggers: triggers write changes to an outbox on the primary, and one process reads
//! it. It needs neither a superuser nor `wal_level = logical`, and its queries work through a
//! pooler in transaction mode.

mod floor;
mod page;
mod reader;

use std::time::Instant;

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::client::LimitedClient;
use super::context::{CaptureContext, Ended, STAGE};
use super::error::CaptureError;
use super::session::{ReadUntil, Session, Sessions};
use super::switch::WalRemoval;
use crate::config::Source;
use crate::domain::gap::Gap;
use crate::domain::lsn::Lineage;
use crate::failpoint::failpoint;
use crate::postgres;
use crate::primary::error::PrimaryError;
use crate::primary::finding::Condition as FindingCondition;
use crate::primary::inspect::{Conditions, inspect};
use crate::primary::lease::CaptureLease;
use crate::primary::{catalog, lineage};
use crate::repair::watch::Watch;
use crate::store::checkpoint::SwitchToWal;
use crate::store::processes::new_claim;
use crate::telemetry::health::Health;

use reader::{OutboxCursor, OutboxReader, ReadStep};

/// Reads until shutdown, until a prepared switch to the WAL, or until a permanent error.
pub(super) async fn run(context: &CaptureContext<'_>) -> Result<Ended, CaptureError> {
    let sessions = Sessions::new(context);
    let holder = new_claim();

    let session = OutboxSession {
        context,
        holder,
        cursor: None,
        switch: None,
        read_until: sessions.read_until.clone(),
        wal_removal: WalRemoval::new(),
    };

    sessions.run_with_lease(holder, session).await
}

/// The state that outlives connections.
struct OutboxSession<'a> {
    context: &'a CaptureContext<'a>,
    /// The id of the lease and of the claim on the checkpoint. After a lost claim, reading starts
    /// again with a new id.
    holder: Uuid,
    cursor: Option<OutboxCursor>,
    switch: Option<SwitchToWal>,
    read_until: ReadUntil,
    wal_removal: WalRemoval,
}

impl Session for OutboxSession<'_> {
    /// Takes the lease and reads over one connection until it ends.
    async fn run(&mut self, sessions: &mut Sessions<'_>) -> Result<Ended, CaptureError> {
        let CaptureContext {
            source,
            url,
            store,
            health,
            ..
        } = *self.context;

        let Some(lease) = CaptureLease::take(store, &source.slot, self.holder).await? else {
            return Err(CaptureError::LeaseHeld(source.slot.clone()));
        };

        failpoint!("outbox_lease_taken_checkpoint_not_claimed")?;

        if self.cursor.is_some() {
            // Another process may have held the lease meanwhile.
            if store
                .checkpoint_of_reader(&source.slot, Some(self.holder))
                .await?
                .is_none()
            {
                return Err(CaptureError::Superseded(source.slot.clone()));
            }
        } else {
            store.claim_checkpoint(&source.slot, self.holder).await?;
            let Some(stored) = store.stored_checkpoint(&source.slot).await? else {
                return Err(PrimaryError::NotSetUp {
                    slot: source.slot.clone(),
                }
                .into());
            };

            (self.cursor, self.switch) = (OutboxCursor::new(stored.checkpoint), stored.switch);

            if self.cursor.is_none() {
                // Another process has switched to the WAL.
                lease.release().await;
                return Ok(Ended::Switched);
            }
        }

        let client = LimitedClient::connect(url).await?;
        let known = self.cursor.as_ref().map(OutboxCursor::lineage);
        let mut watch = Watch::new(self.context.gaps);

        let work = async {
            // Before anything else: the triggers and the outbox of a replaced primary mean nothing.
            let lineage = verified_lineage(&client, known).await?;
            examine(
                &mut watch,
                &client,
                self.cursor.as_ref().map_or(0, OutboxCursor::backlog_after),
                health,
            )
            .await?;

            tracing::info!(slot = source.slot, "reading changes from the outbox");
            sessions.started();

            self.read(client, lineage, &lease, &mut watch).await
        };

        match work.await.map_err(as_lost_outbox) {
            Err(CaptureError::Primary(PrimaryError::Gap(gap))) => {
                watch.record(gap.clone()).await?;
                Err(PrimaryError::Gap(gap).into())
            }
            Err(error) if error.is_replaced() => {
                // Another replica may reach the new primary.
                lease.release().await;
                Err(error)
            }
            Ok(Ended::Switched) => {
                lease.release().await;
                Ok(Ended::Switched)
            }
            other => other,
        }
    }
}

impl OutboxSession<'_> {
    async fn read(
        &mut self,
        client: LimitedClient,
        lineage: Lineage,
        lease: &CaptureLease,
        watch: &mut Watch<'_>,
    ) -> Result<Ended, CaptureError> {
        let OutboxSession {
            context,
            holder,
            cursor,
            switch,
            read_until,
            wal_removal,
        } = self;

        let CaptureContext {
            source,
            batches,
            durable,
            health,
            ..
        } = **context;

        let Some(cursor) = cursor else {
            return Err(PrimaryError::NotSetUp {
                slot: source.slot.clone(),
            }
            .into());
        };

        let switch = switch.as_ref();
        cursor.disconnected();

        let durable = durable.clone();
        let altered = Vec::new();

        let mut reader = OutboxReader {
            client,
            source,
            batches,
            durable,
            reader: *holder,
            switch,
            failed: false,
            altered,
        };

        let mut examined_at = Instant::now();
        let removal = async {
            // If a switch to the WAL is prepared, its slot and publication are needed.
            if switch.is_none() {
                wal_removal.run(context, lease, lineage).await;
            }

            std::future::pending().await
        };

        let reading = async {
            loop {
                if lease.is_lost() {
                    return Err(CaptureError::LeaseHeld(source.slot.clone()));
                }

                let started_at = Instant::now();
                let step = reader.step(cursor).await?;

                read_until.advance(started_at);

                if reader.failed {
                    let watch = &mut *watch;
                    reader
                        .client
                        .run(move |client| watch.record_failures(client))
                        .await?;
                }

                if step == ReadStep::Altered || examined_at.elapsed() > source.heartbeat.0 {
                    examine(watch, &reader.client, cursor.backlog_after(), health).await?;
                    examined_at = Instant::now();
                }

                match step {
                    ReadStep::Read | ReadStep::Altered => {}
                    ReadStep::Closed => return Ok(Ended::Stopped),
                    ReadStep::Switched => return Ok(Ended::Switched),
                    // Rows are deleted as soon as their events are stored.
                    ReadStep::Idle => tokio::select! {
                        () = tokio::time::sleep(source.poll_interval.0) => {}
                        Ok(()) = reader.durable.changed() => {}
                    },
                }
            }
        };

        tokio::select! {
            ended = reading => ended,
            never = removal => never,
        }
    }
}

/// Returns the lineage of the server, after comparing it with the one that is known.
async fn verified_lineage(
    client: &LimitedClient,
    known: Option<Lineage>,
) -> Result<Lineage, CaptureError> {
    let found = client.run(catalog::lineage).await?;

    if let Some(known) = known {
        lineage::verify(found, known)?;
    }

    Ok(found)
}

/// Examines the triggers, and reports to readiness what an operator has to fix.
async fn examine(
    watch: &mut Watch<'_>,
    client: &LimitedClient,
    row: u64,
    health: &Health,
) -> Result<(), CaptureError> {
    let obstacles = client.run(move |client| watch.examine(client, row)).await?;
    match obstacles.is_empty() {
        true => health.report_healthy(STAGE),
        false => health.report_unhealthy(STAGE, obstacles.join("; ")),
    }

    Ok(())
}

/// Converts an error to a gap if it means that the outbox is gone or not accessible.
fn as_lost_outbox(error: CaptureError) -> CaptureError {
    let CaptureError::Primary(PrimaryError::Query(primary)) = &error else {
        return error;
    };

    let lost = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::INSUFFICIENT_PRIVILEGE,
    ];
    match primary.code().is_some_and(|code| lost.contains(code)) {
        true => PrimaryError::Gap(Gap::OutboxLost(postgres::describe(primary))).into(),
        false => error,
    }
}

/// Verifies the triggers' functions. Fails if they were created for another mapping: they would
/// write other columns.
pub(super) async fn verify(
    client: &tokio_postgres::Client,
    source: &Source,
) -> Result<(), CaptureError> {
    let found = inspect(client, source, Conditions::Triggers).await?;
    match found
        .findings
        .into_iter()
        .find(|finding| matches!(finding.condition, FindingCondition::TriggerFunction(_)))
    {
        Some(finding) => Err(PrimaryError::Preconditions(vec![finding]).into()),
        None => Ok(()),
    }
}
