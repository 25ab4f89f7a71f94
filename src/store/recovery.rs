//! Redeliveries of single deliveries, and recoveries, which redeliver a time range.

use deadpool_postgres::{GenericClient, Transaction};
use jiff::Timestamp;
use postgres_types::ToSql;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::job_progress::{JobProgress, JobSize, Phase};
use super::statement::{Statements, from_row};
use super::{ID_TOLERANCE_MS, Result, Store, lowest_id_at};
use crate::sql::store as sql;

/// A count reads at most this many rows of the attempt log, and as many missed events. Beyond that
/// it is a lower bound.
const MAX_COUNTED: i64 = 50_000;

/// The result of a request to redeliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedeliveryResult {
    Started {
        delivery: Uuid,
        round: u16,
    },
    NoSuchLog,
    Inactive,
    /// The log entry is a test.
    Test,
    /// The event was removed because of its age.
    EventGone,
    /// The delivery has had as many rounds as can be numbered.
    TooManyRounds,
}

/// The deliveries that a recovery redelivers.
#[derive(Clone, Debug)]
pub struct Scope {
    pub since: Timestamp,
    /// Exclusive.
    pub until: Timestamp,
    /// The outcomes of a delivery's last attempt.
    pub outcomes: Vec<String>,
    /// Whether to deliver the events that the webhook missed while it was inactive.
    pub missed: bool,
}

from_row!(Scope {
    since,
    until,
    outcomes,
    missed
});

impl Scope {
    /// Whether the recovery has this phase.
    pub fn includes(&self, phase: Phase) -> bool {
        match phase {
            Phase::AttemptLog => !self.outcomes.is_empty(),
            Phase::MissedEvents => self.missed,
            Phase::PendingDeliveries | Phase::Events => false,
        }
    }
}

/// Starts the next round of the delivery of a log entry.
pub async fn redeliver(
    store: &Store,
    actor: &Actor,
    webhook: Uuid,
    log: Uuid,
) -> Result<RedeliveryResult> {
    store
        .transaction(async |transaction| {
            let found: Option<Logged> = transaction
                .fetch_optional(
                    sql::attempt::FIND_REDELIVERY,
                    &[&actor.user, &webhook, &log],
                )
                .await?;
            let logged = match found {
                None => return Ok(RedeliveryResult::NoSuchLog),
                Some(Logged { test: true, .. }) => return Ok(RedeliveryResult::Test),
                Some(Logged { kept: false, .. }) => return Ok(RedeliveryResult::EventGone),
                Some(Logged { active: false, .. }) => return Ok(RedeliveryResult::Inactive),
                Some(logged) => logged,
            };

            // Round 1, unless the store knows a later one.
            let logged = LoggedDeliveries {
                deliveries: vec![logged.delivery],
                events: vec![logged.event],
                rounds: vec![1],
                sequences: vec![logged.sequence],
            };

            let started = start_next_rounds(transaction, webhook, &logged, false).await?;
            let Some((delivery, round)) = started.first().copied() else {
                return Ok(RedeliveryResult::TooManyRounds);
            };

            let action = Action::DeliveryRedelivered;
            audit::record(transaction, actor, action, webhook, &[]).await?;
            Ok(RedeliveryResult::Started { delivery, round })
        })
        .await
}

/// A log entry to redeliver.
struct Logged {
    delivery: Uuid,
    event: Uuid,
    sequence: Option<i64>,
    test: bool,
    /// Whether the event is still stored.
    kept: bool,
    active: bool,
}

from_row!(Logged { delivery = "delivery_id", event = "event_id", sequence, test, kept, active });

/// Returns how many deliveries a recovery of this scope would start.
pub async fn count(store: &Store, webhook: Uuid, scope: &Scope) -> Result<JobSize> {
    let connection = store.connection().await?;
    let mut counted = JobSize {
        count: 0,
        is_exact: true,
    };

    for phase in [Phase::AttemptLog, Phase::MissedEvents]
        .into_iter()
        .filter(|phase| scope.includes(*phase))
    {
        let start = JobProgress::start_of(phase);
        let scan = scan(&*connection, webhook, scope, start, MAX_COUNTED + 1, false).await?;
        counted.count += scan.found;
        counted.is_exact &= scan.read <= MAX_COUNTED;
    }

    Ok(counted)
}

/// Counts the webhook's pending first attempts, up to `limit`: with those that wait for other
/// deliveries, or without them.
pub async fn count_first_attempts(
    transaction: &Transaction<'_>,
    webhook: Uuid,
    limit: i64,
    with_parked: bool,
) -> Result<i64> {
    transaction
        .fetch_one(
            sql::delivery::COUNT_FRESH,
            &[&webhook, &limit, &with_parked],
        )
        .await
}

/// The result of reading the next rows of the attempt log or of the missed events: which of them to
/// deliver.
#[derive(Clone, Debug)]
pub struct RecoveryScan {
    /// How many rows were read.
    pub read: i64,
    /// The last id that was read.
    pub last: Option<Uuid>,
    /// How many deliveries, or missed events, are to be delivered. The lists contain them, unless
    /// only the number was requested.
    pub found: u64,
    /// Of missed events, only the events.
    pub logged: LoggedDeliveries,
}

/// Deliveries of the attempt log, in ascending order, as parallel lists.
#[derive(Clone, Debug)]
pub struct LoggedDeliveries {
    pub deliveries: Vec<Uuid>,
    pub events: Vec<Uuid>,
    /// The rounds that the deliveries are in.
    pub rounds: Vec<i16>,
    /// The numbers of the deliveries within the webhook.
    pub sequences: Vec<Option<i64>>,
}

from_row!(RecoveryScan { read = "examined", last, found, logged: LoggedDeliveries::from_row });
from_row!(LoggedDeliveries {
    deliveries,
    events,
    rounds,
    sequences
});

/// Reads up to `limit` rows of the phase, after the position. Returns the deliveries or events to
/// deliver, or only counts them.
pub async fn scan(
    client: &impl GenericClient,
    webhook: Uuid,
    scope: &Scope,
    progress: JobProgress,
    limit: i64,
    with_lists: bool,
) -> Result<RecoveryScan> {
    let is_log = progress.phase == Phase::AttemptLog;
    let (statement, parameters, tolerance) = if is_log {
        // An attempt's id contains its time by a replica's clock.
        (sql::recovery::SCAN_ATTEMPTS, 9, ID_TOLERANCE_MS)
    } else {
        // An event's id contains the time of its commit. One millisecond, because `until` has a
        // higher resolution.
        (sql::missed_event::SCAN, 7, 1)
    };

    let since = scope.since.as_millisecond().saturating_sub(tolerance);
    let from = lowest_id_at(since).max(progress.position);
    let to = lowest_id_at(scope.until.as_millisecond().saturating_add(tolerance));

    let params: [&(dyn ToSql + Sync); 9] = [
        &webhook,
        &from,
        &to,
        &scope.since,
        &scope.until,
        &limit,
        &with_lists,
        &scope.outcomes,
        &ID_TOLERANCE_MS,
    ];

    client.fetch_one(statement, &params[..parameters]).await
}

/// Starts the next round of each delivery, and returns the deliveries with their new rounds. With
/// `only_if_unchanged`, skips deliveries that are no longer in the round in `rounds`: another
/// transaction has started their next one.
pub async fn start_next_rounds(
    transaction: &Transaction<'_>,
    webhook: Uuid,
    LoggedDeliveries {
        deliveries,
        events,
        rounds,
        sequences,
    }: &LoggedDeliveries,
    only_if_unchanged: bool,
) -> Result<Vec<(Uuid, u16)>> {
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }

    transaction
        .fetch_all(
            sql::delivery::REDELIVER,
            &[
                deliveries,
                events,
                rounds,
                &webhook,
                sequences,
                &only_if_unchanged,
            ],
        )
        .await
}

/// Removes missed events of the webhook. Returns those that no other transaction removed first, in
/// the order of their commits, with the release of each event that has one.
pub async fn remove_missed(
    transaction: &Transaction<'_>,
    webhook: Uuid,
    events: &[Uuid],
) -> Result<Vec<(Uuid, Option<i64>)>> {
    let removed: Vec<Uuid> = transaction
        .fetch_all(sql::missed_event::DELETE, &[&webhook, &events])
        .await?;
    in_commit_order(transaction, &removed).await
}

/// Sorts stored events in the order of their commits. Returns each with its release, if it has one.
pub async fn in_commit_order(
    transaction: &Transaction<'_>,
    events: &[Uuid],
) -> Result<Vec<(Uuid, Option<i64>)>> {
    transaction
        .fetch_all(sql::event::IN_COMMIT_ORDER, &[&events])
        .await
}
