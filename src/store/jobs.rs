//! Jobs: recoveries, which redeliver a time range, and replays, which deliver stored events to a
//! webhook that never had them.

use std::time::Duration;

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::job_progress::{JobProgress, Phase};
use super::recovery::Scope;
use super::replay::{self, Replay, Selection};
use super::statement::{ColumnValue, FromRow, Statements, column, from_row};
use super::{Result, Store, lowest_id_at};
use crate::domain::event::UserId;
use crate::sql::store as sql;

const EXPIRE: [&str; 2] = [sql::recovery::EXPIRE, sql::webhook_hour::EXPIRE];

/// The most unfinished jobs of one webhook. Each is a row that every replica reads twice a second.
const MAX_OPEN: i64 = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub id: Uuid,
    pub kind: String,
    pub state: JobState,
    /// Deliveries created so far.
    pub done: u64,
    /// Deliveries to create. An estimate until the job has finished.
    pub total: u64,
    pub created_at: Timestamp,
    /// When it finished or was cancelled.
    pub finished_at: Option<Timestamp>,
}

from_row!(Job {
    id,
    kind,
    state,
    done,
    total,
    created_at,
    finished_at
});

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Queued,
    Running,
    Finished,
    /// Ended by its owner, or because its webhook became inactive.
    Cancelled,
}

impl JobState {
    pub const ALL: [JobState; 4] = [
        JobState::Queued,
        JobState::Running,
        JobState::Finished,
        JobState::Cancelled,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            JobState::Queued => "queued",
            JobState::Running => "running",
            JobState::Finished => "finished",
            JobState::Cancelled => "cancelled",
        }
    }

    pub fn has_ended(self) -> bool {
        matches!(self, JobState::Finished | JobState::Cancelled)
    }
}

impl ColumnValue for JobState {
    type Stored = String;

    fn from_stored(stored: String) -> std::result::Result<JobState, String> {
        let mut states = JobState::ALL.into_iter();
        states
            .find(|state| state.as_str() == stored)
            .ok_or_else(|| format!("unknown state {stored}"))
    }
}

/// What a new job delivers.
#[derive(Clone, Debug)]
pub enum Order {
    Recovery(Scope),
    Replay(Selection),
}

impl Order {
    /// Returns the kind of job, as the API names it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Order::Recovery(_) => "recover",
            Order::Replay(_) => "replay",
        }
    }
}

/// Queues a job that is expected to create `total` deliveries, and returns its id. Returns `None`
/// if the webhook has too many unfinished jobs.
pub async fn begin(
    store: &Store,
    actor: &Actor,
    webhook: Uuid,
    order: &Order,
    total: u64,
) -> Result<Option<Uuid>> {
    let id = Uuid::now_v7();
    let total = i64::try_from(total).unwrap_or(i64::MAX);
    let none = Vec::new();

    let (phase, action) = match order {
        Order::Recovery(_) => (Phase::AttemptLog, Action::RecoveryBegun),
        Order::Replay(_) => (Phase::PendingDeliveries, Action::ReplayStarted),
    };

    let (since, until) = match order {
        Order::Recovery(Scope { since, until, .. }) => (since, until),
        Order::Replay(Selection { since, until, .. }) => (since, until),
    };

    let (outcomes, missed, events, labels) = match order {
        Order::Recovery(scope) => (&scope.outcomes, scope.missed, None, None),
        Order::Replay(replay) => (&none, false, Some(&replay.events), replay.labels.as_ref()),
    };

    store
        .transaction(async |transaction| {
            let inserted = transaction
                .run(
                    sql::recovery::INSERT,
                    &[
                        &id,
                        &actor.user,
                        &webhook,
                        &order.kind(),
                        &phase.as_str(),
                        since,
                        until,
                        outcomes,
                        &missed,
                        &events,
                        &labels,
                        &total,
                        &MAX_OPEN,
                    ],
                )
                .await?;
            if inserted == 0 {
                return Ok(None);
            }

            audit::record(transaction, actor, action, webhook, &[]).await?;
            Ok(Some(id))
        })
        .await
}

/// A job that is locked by this transaction.
#[derive(Clone, Debug)]
pub struct LockedJob {
    pub id: Uuid,
    pub webhook: Uuid,
    /// The webhook's owner. Empty if the webhook was deleted.
    pub user: UserId,
    /// Whether the webhook exists and is active.
    pub active: bool,
    pub progress: JobProgress,
    pub work: Work,
}

/// What a job does.
#[derive(Clone, Debug)]
pub enum Work {
    Recovery(Scope),
    Replay(Box<Replay>),
}

from_row!(LockedJob {
    id,
    webhook = "webhook_id",
    user = "user_id",
    active,
    progress: JobProgress::from_row,
    work: work
});

fn work(row: &tokio_postgres::Row) -> Result<Work> {
    match column::<String>(row, "kind")?.as_str() {
        "replay" => Replay::from_row(row).map(|replay| Work::Replay(Box::new(replay))),
        _ => Ok(Work::Recovery(Scope::from_row(row)?)),
    }
}

/// Locks the job that has been due longest and that no other replica holds. Jobs of the users
/// `later` come after those of others.
pub async fn take(transaction: &Transaction<'_>, later: &[UserId]) -> Result<Option<LockedJob>> {
    transaction
        .fetch_optional(sql::recovery::TAKE, &[&later])
        .await
}

/// The effects of a step, before they are committed.
#[derive(Clone, Debug)]
pub struct Done {
    /// The number of deliveries that were started.
    pub started: usize,
    /// Those that a replay created.
    pub created: Vec<Uuid>,
    /// How many a replay creates at most.
    pub chunk_size: i32,
    /// Where to continue. `None` when the job is finished.
    pub next: Option<JobProgress>,
    /// When to continue.
    pub wait: Duration,
}

impl LockedJob {
    /// Stores the effects of a step. Returns how many deliveries the job has started, if it is
    /// finished.
    pub async fn advance(&self, transaction: &Transaction<'_>, done: &Done) -> Result<Option<i64>> {
        let JobProgress {
            phase,
            position,
            sequence,
        } = done.next.unwrap_or(self.progress);
        let is_finished = done.next.is_none();

        let total = transaction
            .fetch_one(
                sql::recovery::MOVE,
                &[
                    &self.id,
                    &phase.as_str(),
                    &position,
                    &sequence,
                    &(done.started as i64),
                    &done.created,
                    &done.chunk_size,
                    &is_finished,
                    &done.wait.as_secs_f64(),
                ],
            )
            .await?;

        Ok(is_finished.then_some(total))
    }
}

/// Lists the webhook's jobs, newest first, starting after the job `before`.
pub async fn list(
    store: &Store,
    user: &UserId,
    webhook: Uuid,
    before: Option<Uuid>,
    limit: usize,
) -> Result<Vec<Job>> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    store
        .fetch_all(
            sql::recovery::LIST,
            &[user, &webhook, &None::<Uuid>, &before, &limit],
        )
        .await
}

pub async fn get(store: &Store, user: &UserId, webhook: Uuid, job: Uuid) -> Result<Option<Job>> {
    store
        .fetch_optional(
            sql::recovery::LIST,
            &[user, &webhook, &job, &None::<Uuid>, &1_i64],
        )
        .await
}

/// Cancels a job that has not ended. The deliveries that it has created remain. Returns false if
/// there is no such job.
pub async fn cancel(store: &Store, actor: &Actor, webhook: Uuid, job: Uuid) -> Result<bool> {
    store
        .transaction(async |transaction| {
            let found: Option<Job> = transaction
                .fetch_optional(
                    sql::recovery::LIST,
                    &[&actor.user, &webhook, &job, &None::<Uuid>, &1_i64],
                )
                .await?;
            if found.is_none() {
                return Ok(false);
            }

            // Waits for the step that a replica is running.
            if end(transaction, job).await?.is_some() {
                audit::record(transaction, actor, Action::JobCancelled, webhook, &[]).await?;
            }

            Ok(true)
        })
        .await
}

/// Ends a job early. Returns how many deliveries it has created. None if it has ended before.
pub async fn end(transaction: &Transaction<'_>, job: Uuid) -> Result<Option<i64>> {
    transaction
        .fetch_optional(sql::recovery::END, &[&job])
        .await
}

impl Store {
    /// Removes ended jobs, hourly statistics and rounds from before `oldest`.
    pub async fn expire_jobs(&self, oldest: Timestamp) -> Result<()> {
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
