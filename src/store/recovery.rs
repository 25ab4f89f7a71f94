//! Deliveries made again: one by hand, or all of a stretch of time in chunks that each are one transaction.

use std::time::Duration;

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::enqueue::{NewDelivery, NewLease, insert_deliveries};
use super::logs::{ID_TOLERANCE_MS, lowest_id_at};
use super::{Result, Store, StoreError, superseded};
use crate::domain::delivery::Outcome;
use crate::domain::event::delivery_id;

const REDELIVER_FIND: &str = include_str!("../../sql/store/redeliver_find.sql");
const REDELIVER: &str = include_str!("../../sql/store/delivery_redeliver.sql");
const INSERT: &str = include_str!("../../sql/store/recovery_insert.sql");
const TAKE: &str = include_str!("../../sql/store/recovery_take.sql");
const MOVE: &str = include_str!("../../sql/store/recovery_move.sql");
const LOG_SCAN: &str = include_str!("../../sql/store/recovery_scan.sql");
const LOG_COUNT: &str = include_str!("../../sql/store/recovery_count.sql");
const MISSED_SCAN: &str = include_str!("../../sql/store/missed_event_scan.sql");
const MISSED_COUNT: &str = include_str!("../../sql/store/missed_event_count.sql");
const MISSED_DELETE: &str = include_str!("../../sql/store/missed_event_delete.sql");
const COUNT_FRESH: &str = include_str!("../../sql/store/delivery_count_fresh.sql");
const EXPIRE: [&str; 2] =
    [include_str!("../../sql/store/recovery_expire.sql"), include_str!("../../sql/store/webhook_hour_expire.sql")];
const EXPIRE_ROUNDS: &str = include_str!("../../sql/store/delivery_round_expire.sql");

/// Rows of the log, or missed events, that one chunk looks at; it makes no more deliveries than that.
const CHUNK: i64 = 500;
/// While a webhook has as many first attempts pending, no more are recovered: what is fresh must not wait behind what is old.
const MOST_PENDING: i64 = 500;
/// How long to leave a recovery alone that waits for that.
const THROTTLE: Duration = Duration::from_millis(200);
/// Rows that a count looks at. One that would have to look at more says that it is not exact.
const COUNTED_ROWS: i64 = 50_000;
/// Recoveries of one webhook that may be under way.
const MOST_OPEN: i64 = 10;

/// What came of asking for a redelivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivery {
    PipelinedTransaction {
        delivery: Uuid,
        round: u16,
    },
    NoSuchLog,
    Inactive,
    /// A test's.
    Test,
    /// The event is gone by age.
    EventGone,
    /// There is no number left for another round.
    TooManyRounds,
}

/// What to recover.
#[derive(Clone, Debug)]
pub struct Scope {
    pub since: Timestamp,
    /// Before this time.
    pub until: Timestamp,
    /// What the last attempt has to have ended in.
    pub outcomes: Vec<Outcome>,
    /// Whether events of the time in which the webhook was inactive are delivered too.
    pub missed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub count: u64,
    /// There may be more where not everything was looked at.
    pub is_exact: bool,
}

/// What one step of the recoveries came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No recovery is waiting.
    Idle,
    Worked,
    /// This one is over.
    Finished {
        recovery: Uuid,
        webhook: Uuid,
        recovered: i64,
    },
}

/// Begins the next round of the delivery that an entry of the log is about.
pub async fn redeliver(store: &Store, actor: &Actor, webhook: Uuid, log: Uuid) -> Result<Redelivery> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let find = transaction.prepare_cached(REDELIVER_FIND).await?;
    let Some(found) = transaction.query_opt(&find, &[&&*actor.user.0, &webhook, &log]).await? else {
        return Ok(Redelivery::NoSuchLog);
    };
    if found.get("test") {
        return Ok(Redelivery::Test);
    }
    if !found.get::<_, bool>("kept") {
        return Ok(Redelivery::EventGone);
    }
    if !found.get::<_, bool>("active") {
        return Ok(Redelivery::Inactive);
    }
    // Of the first round, unless a later one is known.
    let again = Again { delivery: found.get("delivery_id"), event: found.get("event_id"), round: 1 };
    let begun = next_rounds(&transaction, webhook, vec![again], false).await?;
    if !begun.is_empty() {
        audit::record(&transaction, actor, Action::DeliveryRedelivered, webhook, &[]).await?;
    }
    transaction.commit().await?;
    Ok(match begun.first() {
        Some((delivery, round)) => Redelivery::PipelinedTransaction { delivery: *delivery, round: *round },
        None => Redelivery::TooManyRounds,
    })
}

/// How many deliveries a recovery of this scope would make.
pub async fn count(store: &Store, webhook: Uuid, scope: &Scope) -> Result<Counted> {
    let connection = store.connection().await?;
    let (outcomes, limit) = (scope.outcome_names(), COUNTED_ROWS + 1);
    let mut rows = Vec::new();
    if !outcomes.is_empty() {
        let (from, to) = scope.log_ids();
        let statement = connection.prepare_cached(LOG_COUNT).await?;
        let Scope { since, until, .. } = scope;
        rows.push(connection.query_one(&statement, &[&webhook, &from, &to, since, until, &outcomes, &limit]).await?);
    }
    if scope.missed {
        let (from, to) = scope.event_ids();
        let statement = connection.prepare_cached(MISSED_COUNT).await?;
        rows.push(connection.query_one(&statement, &[&webhook, &from, &to, &scope.since, &scope.until, &limit]).await?);
    }
    let number = |row: &Row, name: &str| row.get::<_, i64>(name);
    Ok(Counted {
        count: rows.iter().map(|row| number(row, "found") as u64).sum(),
        is_exact: rows.iter().all(|row| number(row, "looked") <= COUNTED_ROWS),
    })
}

/// Stores a recovery for whoever works them off; none where too many of the webhook are under way.
pub async fn begin(store: &Store, actor: &Actor, webhook: Uuid, scope: &Scope) -> Result<Option<Uuid>> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let statement = transaction.prepare_cached(INSERT).await?;
    let id = Uuid::now_v7();
    let Scope { since, until, missed, .. } = scope;
    let outcomes = scope.outcome_names();
    let inserted = transaction
        .execute(&statement, &[&id, &&*actor.user.0, &webhook, since, until, &outcomes, missed, &MOST_OPEN])
        .await?;
    if inserted == 0 {
        return Ok(None);
    }
    audit::record(&transaction, actor, Action::RecoveryBegun, webhook, &[]).await?;
    transaction.commit().await?;
    Ok(Some(id))
}

impl Scope {
    fn outcome_names(&self) -> Vec<&'static str> {
        self.outcomes.iter().map(|outcome| outcome.as_str()).collect()
    }

    /// Between which ids the log's lines of this time are: their ids tell it, give or take what clocks differ by.
    fn log_ids(&self) -> (Uuid, Uuid) {
        log_ids(self.since, self.until)
    }

    fn event_ids(&self) -> (Uuid, Uuid) {
        event_ids(self.since, self.until)
    }
}

fn log_ids(since: Timestamp, until: Timestamp) -> (Uuid, Uuid) {
    let id = |millis: i64| lowest_id_at(millis);
    (id(since.as_millisecond() - ID_TOLERANCE_MS), id(until.as_millisecond() + ID_TOLERANCE_MS))
}

/// Of events, exactly: their ids are made from the time.
fn event_ids(since: Timestamp, until: Timestamp) -> (Uuid, Uuid) {
    (lowest_id_at(since.as_millisecond()), lowest_id_at(until.as_millisecond().saturating_add(1)))
}

/// A recovery whose turn it is.
struct Job {
    id: Uuid,
    webhook: Uuid,
    since: Timestamp,
    until: Timestamp,
    outcomes: Vec<String>,
    missed: bool,
    phase: Phase,
    position: Uuid,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Log,
    Missed,
}

impl Phase {
    const fn as_str(self) -> &'static str {
        match self {
            Phase::Log => "log",
            Phase::Missed => "missed",
        }
    }
}

/// Where a chunk ended.
struct Chunk {
    made: usize,
    /// The last id looked at; none where nothing is left in this phase.
    last: Option<Uuid>,
}

impl Store {
    /// Works off a chunk of the recovery that has waited longest.
    pub async fn step_recovery(&self) -> Result<Step> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        let take = transaction.prepare_cached(TAKE).await?;
        let Some(row) = transaction.query_opt(&take, &[]).await? else { return Ok(Step::Idle) };
        let (job, active) = (Job::from_row(&row)?, row.get::<_, bool>("active"));
        let step = if !active {
            job.move_to(&transaction, job.phase, job.position, 0, true, Duration::ZERO).await?
        } else if job.is_ahead(&transaction).await? {
            job.move_to(&transaction, job.phase, job.position, 0, false, THROTTLE).await?
        } else {
            job.work(&transaction).await?
        };
        transaction.commit().await?;
        Ok(step)
    }

    /// Removes what is about times before `oldest`.
    pub async fn expire_recoveries(&self, oldest: Timestamp) -> Result<()> {
        let connection = self.connection().await?;
        for statement in EXPIRE {
            connection.execute(statement, &[&oldest]).await?;
        }
        connection.execute(EXPIRE_ROUNDS, &[&lowest_id_at(oldest.as_millisecond())]).await?;
        Ok(())
    }
}

impl Job {
    fn from_row(row: &Row) -> Result<Job> {
        Ok(Job {
            id: row.get("id"),
            webhook: row.get("webhook_id"),
            since: row.get("since"),
            until: row.get("until"),
            outcomes: row.get("outcomes"),
            missed: row.get("missed"),
            phase: match row.get("phase") {
                "log" => Phase::Log,
                "missed" => Phase::Missed,
                other => return Err(StoreError::Corrupt(format!("a recovery in phase {other}"))),
            },
            position: row.get("position"),
        })
    }

    /// Whether the webhook has enough to do for now.
    async fn is_ahead(&self, transaction: &Transaction<'_>) -> Result<bool> {
        let statement = transaction.prepare_cached(COUNT_FRESH).await?;
        let pending: i64 = transaction.query_one(&statement, &[&self.webhook, &MOST_PENDING]).await?.get(0);
        Ok(pending >= MOST_PENDING)
    }

    async fn work(&self, transaction: &Transaction<'_>) -> Result<Step> {
        let chunk = match self.phase {
            Phase::Log => self.scan_log(transaction).await?,
            Phase::Missed => self.scan_missed(transaction).await?,
        };
        let (phase, position, over) = match (chunk.last, self.phase) {
            (Some(last), phase) => (phase, last, false),
            (None, Phase::Log) if self.missed => (Phase::Missed, Uuid::nil(), false),
            (None, phase) => (phase, self.position, true),
        };
        self.move_to(transaction, phase, position, chunk.made, over, Duration::ZERO).await
    }

    async fn scan_log(&self, transaction: &Transaction<'_>) -> Result<Chunk> {
        if self.outcomes.is_empty() {
            return Ok(Chunk { made: 0, last: None });
        }
        let (from, to) = log_ids(self.since, self.until);
        let statement = transaction.prepare_cached(LOG_SCAN).await?;
        let Job { webhook, since, until, outcomes, .. } = self;
        let from = from.max(self.position);
        let rows = transaction.query(&statement, &[webhook, &from, &to, since, until, outcomes, &CHUNK]).await?;
        let looked = rows.first().map_or(0, |row| row.get::<_, i64>("looked"));
        let last = rows.first().and_then(|row| row.get("last"));
        let again: Vec<Again> = rows.iter().filter_map(Again::from_row).collect();
        let made = next_rounds(transaction, self.webhook, again, true).await?.len();
        Ok(Chunk { made, last: last.filter(|_| looked == CHUNK) })
    }

    async fn scan_missed(&self, transaction: &Transaction<'_>) -> Result<Chunk> {
        let (from, to) = event_ids(self.since, self.until);
        let statement = transaction.prepare_cached(MISSED_SCAN).await?;
        let Job { webhook, since, until, .. } = self;
        let rows =
            transaction.query(&statement, &[webhook, &from.max(self.position), &to, since, until, &CHUNK]).await?;
        let last = rows.last().map(|row| row.get("event_id")).filter(|_| rows.len() as i64 == CHUNK);
        let wanted: Vec<Uuid> =
            rows.iter().filter(|row| row.get("wanted")).map(|row| row.get::<_, Uuid>("event_id")).collect();
        if !wanted.is_empty() {
            let delete = transaction.prepare_cached(MISSED_DELETE).await?;
            transaction.execute(&delete, &[webhook, &wanted]).await?;
            let delivery = |event: &Uuid| NewDelivery {
                id: delivery_id(*event, *webhook),
                webhook: *webhook,
                event: *event,
                leased: false,
            };
            let deliveries: Vec<NewDelivery> = wanted.iter().map(delivery).collect();
            insert_deliveries(transaction, &deliveries, NewLease { token: Uuid::nil(), seconds: 0.0 }).await?;
        }
        Ok(Chunk { made: wanted.len(), last })
    }

    async fn move_to(
        &self,
        transaction: &Transaction<'_>,
        phase: Phase,
        position: Uuid,
        made: usize,
        over: bool,
        wait: Duration,
    ) -> Result<Step> {
        let statement = transaction.prepare_cached(MOVE).await?;
        let row = transaction
            .query_one(&statement, &[&self.id, &phase.as_str(), &position, &(made as i64), &over, &wait.as_secs_f64()])
            .await?;
        Ok(match over {
            true => Step::Finished { recovery: self.id, webhook: self.webhook, recovered: row.get("recovered") },
            false => Step::Worked,
        })
    }
}

/// A delivery to make again.
struct Again {
    delivery: Uuid,
    event: Uuid,
    /// The one that it was in when it was found.
    round: i16,
}

impl Again {
    fn from_row(row: &Row) -> Option<Again> {
        let delivery = row.get::<_, Option<Uuid>>("delivery_id")?;
        Some(Again { delivery, event: row.get("event_id"), round: row.get("round") })
    }
}

/// Begins the next round of each. With `only_if_unchanged`, not of those that somebody else has begun another round of.
async fn next_rounds(
    transaction: &Transaction<'_>,
    webhook: Uuid,
    mut again: Vec<Again>,
    only_if_unchanged: bool,
) -> Result<Vec<(Uuid, u16)>> {
    if again.is_empty() {
        return Ok(Vec::new());
    }
    again.sort_unstable_by_key(|again| again.delivery);
    again.dedup_by_key(|again| again.delivery);
    let ids: Vec<Uuid> = again.iter().map(|again| again.delivery).collect();
    let events: Vec<Uuid> = again.iter().map(|again| again.event).collect();
    let rounds: Vec<i16> = again.iter().map(|again| again.round).collect();
    superseded::note(transaction, &ids).await?;
    let statement = transaction.prepare_cached(REDELIVER).await?;
    let rows = transaction.query(&statement, &[&ids, &webhook, &events, &rounds, &only_if_unchanged]).await?;
    let begun = |row: &Row| (row.get("id"), u16::try_from(row.get::<_, i16>("round")).unwrap_or(0));
    Ok(rows.iter().map(begun).collect())
}
