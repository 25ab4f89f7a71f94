//! Redeliveries of single deliveries, and the queue of recoveries, which redeliver a time range.

use std::time::Duration;

use deadpool_postgres::{GenericClient, Transaction};
use jiff::Timestamp;
use postgres_types::ToSql;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::logs::{ID_TOLERANCE_MS, lowest_id_at};
use super::statement::{Column, Statements, arrays, from_row};
use super::{Result, Store, superseded};
use crate::domain::delivery::Outcome;

const REDELIVER_FIND: &str = include_str!("../../sql/store/redeliver_find.sql");
const REDELIVER: &str = include_str!("../../sql/store/delivery_redeliver.sql");
const INSERT: &str = include_str!("../../sql/store/recovery_insert.sql");
const TAKE: &str = include_str!("../../sql/store/recovery_take.sql");
const MOVE: &str = include_str!("../../sql/store/recovery_move.sql");
const SCAN_ATTEMPTS: &str = include_str!("../../sql/store/recovery_scan.sql");
const SCAN_MISSED: &str = include_str!("../../sql/store/missed_event_scan.sql");
const MISSED_DELETE: &str = include_str!("../../sql/store/missed_event_delete.sql");
const COUNT_FRESH: &str = include_str!("../../sql/store/delivery_count_fresh.sql");
const EXPIRE: [&str; 2] =
    [include_str!("../../sql/store/recovery_expire.sql"), include_str!("../../sql/store/webhook_hour_expire.sql")];
const EXPIRE_ROUNDS: &str = include_str!("../../sql/store/delivery_round_expire.sql");

/// A count reads at most this many rows of the attempt log, and as many missed events. Beyond that it is a lower bound.
const MAX_COUNTED: i64 = 50_000;
/// The most unfinished recoveries of one webhook.
const MAX_OPEN: i64 = 10;

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub count: u64,
    /// False for a lower bound.
    pub is_exact: bool,
}

/// Starts the next round of the delivery of a log entry.
pub async fn redeliver(store: &Store, actor: &Actor, webhook: Uuid, log: Uuid) -> Result<Redelivery> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let found: Option<Logged> = transaction.fetch_optional(REDELIVER_FIND, &[&actor.user, &webhook, &log]).await?;
    let delivery = match found {
        None => return Ok(Redelivery::NoSuchLog),
        Some(Logged { test: true, .. }) => return Ok(Redelivery::Test),
        Some(Logged { kept: false, .. }) => return Ok(Redelivery::EventGone),
        Some(Logged { active: false, .. }) => return Ok(Redelivery::Inactive),
        // Round 1, unless the store knows a later one.
        Some(Logged { delivery, event, .. }) => DeliveryRound { delivery, event, round: 1 },
    };
    let Some((delivery, round)) = start_next_rounds(&transaction, webhook, vec![delivery], false).await?.pop() else {
        return Ok(Redelivery::TooManyRounds);
    };
    audit::record(&transaction, actor, Action::DeliveryRedelivered, webhook, &[]).await?;
    transaction.commit().await?;
    Ok(Redelivery::Started { delivery, round })
}

/// A log entry to redeliver.
struct Logged {
    delivery: Uuid,
    event: Uuid,
    test: bool,
    /// Whether the event is still stored.
    kept: bool,
    active: bool,
}

from_row!(Logged { delivery = "delivery_id", event = "event_id", test, kept, active });

/// Returns how many deliveries a recovery of this scope would start.
pub async fn count(store: &Store, webhook: Uuid, scope: &Scope) -> Result<Counted> {
    let connection = store.connection().await?;
    let Scope { since, until, outcomes, missed } = scope;
    let range = Range { webhook, since: *since, until: *until, after: Uuid::nil() };
    let mut scans = Vec::new();
    if !outcomes.is_empty() {
        let outcomes = names(outcomes);
        scans.push(range.scan_attempts(&*connection, &outcomes, MAX_COUNTED + 1, false).await?.scan);
    }
    if *missed {
        scans.push(range.scan_missed(&*connection, MAX_COUNTED + 1, false).await?.scan);
    }
    Ok(Counted {
        count: scans.iter().map(|scan| scan.found).sum(),
        is_exact: scans.iter().all(|scan| scan.read <= MAX_COUNTED),
    })
}

/// Queues a recovery and returns its id. Returns `None` if the webhook has too many unfinished ones.
pub async fn begin(store: &Store, actor: &Actor, webhook: Uuid, scope: &Scope) -> Result<Option<Uuid>> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let id = Uuid::now_v7();
    let Scope { since, until, outcomes, missed } = scope;
    let names = names(outcomes);
    let inserted =
        transaction.run(INSERT, &[&id, &actor.user, &webhook, since, until, &names, missed, &MAX_OPEN]).await?;
    if inserted == 0 {
        return Ok(None);
    }
    audit::record(&transaction, actor, Action::RecoveryBegun, webhook, &[]).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

fn names(outcomes: &[Outcome]) -> Vec<String> {
    outcomes.iter().map(|outcome| outcome.as_str().to_owned()).collect()
}

/// A recovery that is locked by this transaction.
#[derive(Clone, Debug)]
pub struct Job {
    pub id: Uuid,
    pub webhook: Uuid,
    /// Whether the webhook exists and is active.
    pub active: bool,
    pub since: Timestamp,
    pub until: Timestamp,
    pub outcomes: Vec<String>,
    pub missed: bool,
    pub progress: Progress,
}

/// How far a recovery has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub phase: Phase,
    /// The last id of the phase that was read.
    pub position: Uuid,
}

/// What a recovery reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    AttemptLog,
    MissedEvents,
}

from_row!(Job {
    id,
    webhook = "webhook_id",
    active,
    since,
    until,
    outcomes,
    missed,
    progress: Progress::from_row
});

from_row!(Progress { phase, position });

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
        phases.into_iter().find(|phase| phase.as_str() == stored).ok_or_else(|| format!("unknown phase {stored}"))
    }
}

/// Locks the recovery that has been due longest and that no other replica holds.
pub async fn take(transaction: &Transaction<'_>) -> Result<Option<Job>> {
    transaction.fetch_optional(TAKE, &[]).await
}

/// Stores how far the recovery has come and adds to its number of deliveries, which is returned. It is due again after `wait`, or
/// finished.
pub async fn update(
    transaction: &Transaction<'_>,
    job: Uuid,
    Progress { phase, position }: Progress,
    started: usize,
    is_finished: bool,
    wait: Duration,
) -> Result<i64> {
    let (started, wait) = (started as i64, wait.as_secs_f64());
    transaction.fetch_one(MOVE, &[&job, &phase.as_str(), &position, &started, &is_finished, &wait]).await
}

/// Counts the webhook's pending first attempts, up to `limit`.
pub async fn count_first_attempts(transaction: &Transaction<'_>, webhook: Uuid, limit: i64) -> Result<i64> {
    transaction.fetch_one(COUNT_FRESH, &[&webhook, &limit]).await
}

/// The part of a webhook's attempt log, or of its missed events, that a scan reads.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub webhook: Uuid,
    pub since: Timestamp,
    pub until: Timestamp,
    /// Reading starts after this id.
    pub after: Uuid,
}

/// How much a scan read and found.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    pub read: i64,
    /// The last id that was read.
    pub last: Option<Uuid>,
    /// How many of the rows that were read are to be delivered.
    pub found: u64,
}

/// A part of the attempt log, and the deliveries to redeliver, with the rounds they are in.
#[derive(Clone, Debug)]
pub struct AttemptScan {
    pub scan: Scan,
    deliveries: Vec<Uuid>,
    events: Vec<Uuid>,
    rounds: Vec<i16>,
}

/// A part of the missed events, and those to deliver.
#[derive(Clone, Debug)]
pub struct MissedScan {
    pub scan: Scan,
    pub events: Vec<Uuid>,
}

from_row!(Scan { read = "looked", last, found });
from_row!(AttemptScan { scan: Scan::from_row, deliveries, events, rounds });
from_row!(MissedScan { scan: Scan::from_row, events });

impl Range {
    /// Reads up to `limit` rows of the attempt log. Returns the deliveries themselves if `with_items`.
    pub async fn scan_attempts(
        &self,
        client: &impl GenericClient,
        outcomes: &[String],
        limit: i64,
        with_items: bool,
    ) -> Result<AttemptScan> {
        let Range { webhook, since, until, after } = self;
        // An attempt's id contains its time by a replica's clock, which differs from the store's.
        let from = lowest_id_at(since.as_millisecond() - ID_TOLERANCE_MS).max(*after);
        let to = lowest_id_at(until.as_millisecond() + ID_TOLERANCE_MS);
        let params: [&(dyn ToSql + Sync); 8] = [webhook, &from, &to, since, until, &outcomes, &limit, &with_items];
        client.fetch_one(SCAN_ATTEMPTS, &params).await
    }

    /// Reads up to `limit` missed events. Returns the events themselves if `with_items`.
    pub async fn scan_missed(&self, client: &impl GenericClient, limit: i64, with_items: bool) -> Result<MissedScan> {
        let Range { webhook, since, until, after } = self;
        // Exact: an event's id is made from the time of its commit.
        let from = lowest_id_at(since.as_millisecond()).max(*after);
        let to = lowest_id_at(until.as_millisecond().saturating_add(1));
        client.fetch_one(SCAN_MISSED, &[webhook, &from, &to, since, until, &limit, &with_items]).await
    }
}

/// A delivery to redeliver.
#[derive(Clone, Copy, Debug)]
pub struct DeliveryRound {
    pub delivery: Uuid,
    pub event: Uuid,
    /// The round that it was in when it was found.
    pub round: i16,
}

impl AttemptScan {
    pub fn items(&self) -> Vec<DeliveryRound> {
        let AttemptScan { deliveries, events, rounds, .. } = self;
        let items = deliveries.iter().zip(events).zip(rounds);
        items
            .map(|((delivery, event), round)| DeliveryRound { delivery: *delivery, event: *event, round: *round })
            .collect()
    }
}

/// Starts the next round of each delivery, and returns the deliveries with their new rounds. With `only_if_unchanged`, skips those of
/// which another transaction has started a round since they were found.
pub async fn start_next_rounds(
    transaction: &Transaction<'_>,
    webhook: Uuid,
    mut deliveries: Vec<DeliveryRound>,
    only_if_unchanged: bool,
) -> Result<Vec<(Uuid, u16)>> {
    if deliveries.is_empty() {
        return Ok(Vec::new());
    }
    deliveries.sort_unstable_by_key(|item| item.delivery);
    deliveries.dedup_by_key(|item| item.delivery);
    let ids: Vec<Uuid> = deliveries.iter().map(|item| item.delivery).collect();
    superseded::note(transaction, &ids).await?;
    let arrays = arrays!(deliveries, |item| (item.delivery, item.event, item.round));
    transaction.fetch_all(REDELIVER, &arrays.followed_by(&[&webhook, &only_if_unchanged])).await
}

/// Removes missed events of the webhook. Returns those that no other transaction removed first.
pub async fn remove_missed(transaction: &Transaction<'_>, webhook: Uuid, events: &[Uuid]) -> Result<Vec<Uuid>> {
    transaction.fetch_all(MISSED_DELETE, &[&webhook, &events]).await
}

impl Store {
    /// Removes finished recoveries, hourly statistics and rounds from before `oldest`.
    pub async fn expire_recoveries(&self, oldest: Timestamp) -> Result<()> {
        for statement in EXPIRE {
            self.run(statement, &[&oldest]).await?;
        }
        self.run(EXPIRE_ROUNDS, &[&lowest_id_at(oldest.as_millisecond())]).await?;
        Ok(())
    }
}
