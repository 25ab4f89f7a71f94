//! The stage of background jobs: runs recoveries and replays step by step. Any number of replicas can
//! run it: each step locks its job.

mod recovery;
mod replay;
mod turns;

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::domain::sequence::Sequences;
use crate::failpoint::failpoint;
use crate::retry::Backoff;
use crate::store::job_progress::JobProgress;
use crate::store::jobs::{self, Done, LockedJob, Work};
use crate::store::{Result, Store, StoreError, Transaction, delivery, sequences, webhooks};
use crate::telemetry::Activity;

pub use turns::Turns;

/// The time limit of a step, which takes milliseconds, or seconds if the store is slow. A longer
/// one waits for a dead connection.
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// How long to wait when no job is due.
const IDLE: Duration = Duration::from_millis(500);
/// No more deliveries are started while the webhook has this many pending first attempts: new
/// events must not queue behind old ones.
const MAX_PENDING: i64 = 500;
/// How long a job then pauses.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs until `stop`, which rolls back the current step. Another replica, or this one after a
/// restart, repeats it.
pub async fn run(store: Store, stop: CancellationToken) -> anyhow::Result<()> {
    let mut retries = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
    let activity = Activity::new("processing recoveries");
    let mut turns = Turns::default();
    let store = store.with_limit(STEP_LIMIT);
    while let Some(result) = stop.run_until_cancelled(step(&store, &mut turns)).await {
        let pause = match result {
            Ok(step) => {
                activity.succeeded();
                retries.reset();

                if let Step::Finished {
                    job,
                    webhook,
                    deliveries,
                } = step
                {
                    tracing::info!(%job, %webhook, deliveries, "recovery or replay ended");
                }

                if step == Step::Idle {
                    IDLE
                } else {
                    Duration::ZERO
                }
            }
            Err(error) => {
                activity.failed(&error);
                retries.next_wait()
            }
        };
        stop.run_until_cancelled(tokio::time::sleep(pause)).await;
    }

    Ok(())
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No job is due.
    Idle,
    Worked,
    /// The job has ended.
    Finished {
        job: Uuid,
        webhook: Uuid,
        /// How many it has created.
        deliveries: i64,
    },
}

/// Runs one step of the job that has been due longest. The deliveries that it starts and its
/// progress are stored in one transaction: an interrupted step has no effect. Other replicas skip
/// the job until the transaction ends.
pub async fn step(store: &Store, turns: &mut Turns) -> Result<Step> {
    let step = store.transaction(async |transaction| {
        let step = step_in(transaction, turns).await?;
        if step != Step::Idle {
            failpoint!("job_step_done_not_committed")?;
        }

        Ok::<_, StoreError>(step)
    });
    let step = step.await?;

    if step != Step::Idle {
        failpoint!("job_step_committed_answer_not_received")?;
    }

    Ok(step)
}

/// Runs one step in a transaction, which the caller then commits.
pub async fn step_in(transaction: &Transaction<'_>, turns: &mut Turns) -> Result<Step> {
    let Some(job) = jobs::take(transaction, turns.served()).await? else {
        return Ok(Step::Idle);
    };

    // Before the work: a step that fails is a turn too.
    turns.count(&job.user);

    Ok(match work(transaction, &job).await? {
        None => Step::Worked,
        Some(deliveries) => Step::Finished {
            job: job.id,
            webhook: job.webhook,
            deliveries,
        },
    })
}

/// Works on a job. If this ends it, returns how many deliveries it has created.
async fn work(transaction: &Transaction<'_>, job: &LockedJob) -> Result<Option<i64>> {
    if !job.active {
        return jobs::end(transaction, job.id).await;
    }

    let done = match &job.work {
        Work::Recovery(scope) => recovery::work(transaction, job, scope).await?,
        Work::Replay(replay) => replay::work(transaction, replay).await?,
    };

    job.advance(transaction, &done).await
}

/// Returns the effects of a step that has started nothing, and continues here.
fn nothing(next: JobProgress, wait: Duration) -> Done {
    Done {
        started: 0,
        created: Vec::new(),
        chunk_size: 0,
        next: Some(next),
        wait,
    }
}

/// Creates deliveries of stored events, each with its release if it has one, numbered behind the
/// deliveries that exist. Those of a webhook with an ordering wait for these. Returns the
/// deliveries' ids.
async fn deliver_stored(
    transaction: &Transaction<'_>,
    webhook: Uuid,
    events: &[(Uuid, Option<i64>)],
) -> Result<Vec<Uuid>> {
    let mut numbers = Sequences::default();
    sequences::start(transaction, &[webhook], &mut numbers).await?;

    let ordering = webhooks::ordering(transaction, webhook).await?;
    let deliveries: Vec<_> = events
        .iter()
        .map(|(event, release)| numbers.delivery(webhook, *event, ordering.key(|| *release)))
        .collect();

    delivery::insert(transaction, &deliveries, None).await?;
    sequences::store(transaction, &numbers.changed()).await?;

    Ok(deliveries.iter().map(|new| new.id).collect())
}
