//! Jobs, as a webhook's owner sees them: recoveries and replays.

use deadpool_postgres::Transaction;
use jiff::Timestamp;
use uuid::Uuid;

use super::audit::{self, Action, Actor};
use super::statement::{Column, Statements, from_row};
use super::{Result, Store};
use crate::domain::event::UserId;
use crate::sql::store as sql;

/// The most unfinished jobs of one webhook. Each is a row that every replica reads twice a second.
pub(super) const MAX_OPEN: i64 = 10;

/// How many deliveries a job would create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    pub count: u64,
    /// False for a lower bound.
    pub is_exact: bool,
}

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

impl Column for JobState {
    type Stored = String;

    fn from_stored(stored: String) -> std::result::Result<JobState, String> {
        let mut states = JobState::ALL.into_iter();
        states
            .find(|state| state.as_str() == stored)
            .ok_or_else(|| format!("unknown state {stored}"))
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
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
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
    if end(&transaction, job).await?.is_some() {
        audit::record(&transaction, actor, Action::JobCancelled, webhook, &[]).await?;
    }

    transaction.commit().await?;
    Ok(true)
}

/// Ends a job early. Returns how many deliveries it has created. None if it has ended before.
pub async fn end(transaction: &Transaction<'_>, job: Uuid) -> Result<Option<i64>> {
    transaction
        .fetch_optional(sql::recovery::END, &[&job])
        .await
}
