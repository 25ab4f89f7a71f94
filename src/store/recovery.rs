//! Redeliveries of single deliveries, recoveries, which redeliver a time range, and the queue of
//! jobs.

use std::time::Duration;

use deadpool_postgres::{GenericClient, Transaction};
use jiff::Timestamp;
use postgres_types::ToSql;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
pub use super::jobs::Counted;
use super::jobs::MAX_OPEN;
use super::logs::{ID_TOLERANCE_MS, lowest_id_at};
use super::replay::{self, Replay};
use super::statement::{Column, FromRow, Statements, column, from_row};
use super::{Result, Store};
use crate::domain::delivery::Outcome;
use crate::domain::event::UserId;
use crate::sql::store as sql;

const EXPIRE: [&str; 2] = [sql::recovery::EXPIRE, sql::webhook_hour::EXPIRE];

/// A count reads at most this many rows of the attempt log, and as many missed events. Beyond that
/// it is a lower bound.
const MAX_COUNTED: i64 = 50_000;

/// The result of a request to redeliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivery {
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
    pub outcomes: Vec<Outcome>,
    /// Whether to deliver the events that the webhook missed while it was inactive.
    pub missed: bool,
}

/// Starts the next round of the delivery of a log entry.
pub async fn redeliver(
    store: &Store,
    actor: &Actor,
    webhook: Uuid,
    log: Uuid,
) -> Result<Redelivery> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let found: Option<Logged> = transaction
        .fetch_optional(
            sql::attempt::FIND_REDELIVERY,
            &[&actor.user, &webhook, &log],
        )
        .await?;

    let (delivery, event, sequence) = match found {
        None => return Ok(Redelivery::NoSuchLog),
        Some(Logged { test: true, .. }) => return Ok(Redelivery::Test),
        Some(Logged { kept: false, .. }) => return Ok(Redelivery::EventGone),
        Some(Logged { active: false, .. }) => return Ok(Redelivery::Inactive),
        Some(Logged {
            delivery,
            event,
            sequence,
            ..
        }) => (delivery, event, sequence),
    };

    // Round 1, unless the store knows a later one.
    let logged = LoggedDeliveries {
        deliveries: vec![delivery],
        events: vec![event],
        rounds: vec![1],
        sequences: vec![sequence],
    };

    let started = start_next_rounds(&transaction, webhook, &logged, false).await?;
    let Some((delivery, round)) = started.first().copied() else {
        return Ok(Redelivery::TooManyRounds);
    };

    audit::record(
        &transaction,
        actor,
        Action::DeliveryRedelivered,
        webhook,
        &[],
    )
    .await?;

    transaction.commit().await?;
    Ok(Redelivery::Started { delivery, round })
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
pub async fn count(store: &Store, webhook: Uuid, scope: &Scope) -> Result<Counted> {
    let connection = store.connection().await?;
    let criteria = Criteria::new(webhook, scope);
    let mut counted = Counted {
        count: 0,
        is_exact: true,
    };

    for phase in [Phase::AttemptLog, Phase::MissedEvents]
        .into_iter()
        .filter(|phase| criteria.includes(*phase))
    {
        let start = Progress {
            phase,
            position: Uuid::nil(),
        };

        let scan = scan(&*connection, &criteria, start, MAX_COUNTED + 1, false).await?;
        counted.count += scan.found;
        counted.is_exact &= scan.read <= MAX_COUNTED;
    }

    Ok(counted)
}

/// Queues a recovery that is expected to start `total` deliveries, and returns its id. Returns
/// `None` if the webhook has too many unfinished jobs.
pub async fn begin(
    store: &Store,
    actor: &Actor,
    webhook: Uuid,
    scope: &Scope,
    total: u64,
) -> Result<Option<Uuid>> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let id = Uuid::now_v7();
    let total = i64::try_from(total).unwrap_or(i64::MAX);

    let Criteria {
        since,
        until,
        outcomes,
        missed,
        ..
    } = &Criteria::new(webhook, scope);

    let inserted = transaction
        .run(
            sql::recovery::INSERT,
            &[
                &id,
                &actor.user,
                &webhook,
                since,
                until,
                outcomes,
                missed,
                &total,
                &MAX_OPEN,
            ],
        )
        .await?;
    if inserted == 0 {
        return Ok(None);
    }

    audit::record(&transaction, actor, Action::RecoveryBegun, webhook, &[]).await?;
    transaction.commit().await?;

    Ok(Some(id))
}

/// A job that is locked by this transaction.
#[derive(Clone, Debug)]
pub struct Job {
    pub id: Uuid,
    pub webhook: Uuid,
    /// The webhook's owner. Empty if the webhook was deleted.
    pub user: UserId,
    /// Whether the webhook exists and is active.
    pub active: bool,
    pub work: Work,
}

/// What a job does, and how far it has come.
#[derive(Clone, Debug)]
pub enum Work {
    Recovery(Criteria, Progress),
    Replay(Box<Replay>),
}

/// The scope of a recovery, as it is stored.
#[derive(Clone, Debug)]
pub struct Criteria {
    pub webhook: Uuid,
    pub since: Timestamp,
    pub until: Timestamp,
    pub outcomes: Vec<String>,
    pub missed: bool,
}

/// How far a recovery has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub phase: Phase,
    /// The last id of the phase that was read.
    pub position: Uuid,
}

/// The phases of a recovery, by what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    AttemptLog,
    MissedEvents,
}

from_row!(Job { id, webhook = "webhook_id", user = "user_id", active, work: work });
from_row!(Criteria { webhook = "webhook_id", since, until, outcomes, missed });
from_row!(Progress { phase, position });

fn work(row: &tokio_postgres::Row) -> Result<Work> {
    match column::<String>(row, "kind")?.as_str() {
        "replay" => Replay::from_row(row).map(|replay| Work::Replay(Box::new(replay))),
        _ => Ok(Work::Recovery(
            Criteria::from_row(row)?,
            Progress::from_row(row)?,
        )),
    }
}

impl Criteria {
    fn new(
        webhook: Uuid,
        Scope {
            since,
            until,
            outcomes,
            missed,
        }: &Scope,
    ) -> Criteria {
        let outcomes = outcomes
            .iter()
            .map(|outcome| outcome.as_str().to_owned())
            .collect();
        Criteria {
            webhook,
            since: *since,
            until: *until,
            outcomes,
            missed: *missed,
        }
    }

    /// Whether the recovery has this phase.
    pub fn includes(&self, phase: Phase) -> bool {
        match phase {
            Phase::AttemptLog => !self.outcomes.is_empty(),
            Phase::MissedEvents => self.missed,
        }
    }
}

impl Phase {
    const fn as_str(self) -> &'static str {
        match self {
            Phase::AttemptLog => "log",
            Phase::MissedEvents => "missed",
        }
    }
}

impl Column for Phase {
    type Stored = String;

    fn from_stored(stored: String) -> std::result::Result<Phase, String> {
        let phases = [Phase::AttemptLog, Phase::MissedEvents];
        phases
            .into_iter()
            .find(|phase| phase.as_str() == stored)
            .ok_or_else(|| format!("unknown phase {stored}"))
    }
}

/// Locks the job that has been due longest and that no other replica holds. Jobs of the users
/// `later` come after those of others.
pub async fn take(transaction: &Transaction<'_>, later: &[UserId]) -> Result<Option<Job>> {
    transaction
        .fetch_optional(sql::recovery::TAKE, &[&later])
        .await
}

/// Stores how far the recovery has come and adds to its number of deliveries, which is returned. It
/// is due again after `wait`, or finished.
pub async fn update(
    transaction: &Transaction<'_>,
    job: Uuid,
    Progress { phase, position }: Progress,
    started: usize,
    is_finished: bool,
    wait: Duration,
) -> Result<i64> {
    let started = started as i64;
    let wait = wait.as_secs_f64();

    transaction
        .fetch_one(
            sql::recovery::MOVE,
            &[
                &job,
                &phase.as_str(),
                &position,
                &started,
                &is_finished,
                &wait,
            ],
        )
        .await
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
pub struct Scan {
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

from_row!(Scan { read = "examined", last, found, logged: LoggedDeliveries::from_row });
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
    Criteria {
        webhook,
        since,
        until,
        outcomes,
        ..
    }: &Criteria,
    Progress { phase, position }: Progress,
    limit: i64,
    with_lists: bool,
) -> Result<Scan> {
    let (statement, tolerance) = match phase {
        // An attempt's id contains its time by a replica's clock.
        Phase::AttemptLog => (sql::recovery::SCAN_ATTEMPTS, ID_TOLERANCE_MS),
        // An event's id contains the time of its commit. One millisecond, because `until` has a
        // higher resolution.
        Phase::MissedEvents => (sql::missed_event::SCAN, 1),
    };

    let from = lowest_id_at(since.as_millisecond().saturating_sub(tolerance)).max(position);
    let to = lowest_id_at(until.as_millisecond().saturating_add(tolerance));

    let params: [&(dyn ToSql + Sync); 9] = [
        webhook,
        &from,
        &to,
        since,
        until,
        &limit,
        &with_lists,
        outcomes,
        &ID_TOLERANCE_MS,
    ];

    let count = if phase == Phase::AttemptLog { 9 } else { 7 };
    client.fetch_one(statement, &params[..count]).await
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

impl Store {
    /// Removes ended jobs, hourly statistics and rounds from before `oldest`.
    pub async fn expire_recoveries(&self, oldest: Timestamp) -> Result<()> {
        for statement in EXPIRE {
            self.run(statement, &[&oldest]).await?;
        }

        self.run(
            sql::delivery_round::EXPIRE,
            &[&lowest_id_at(oldest.as_millisecond())],
        )
        .await?;
        replay::expire(self).await
    }
}
