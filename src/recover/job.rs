//! One step of a job. Of a recovery: redelivers a chunk of the attempt log, or delivers a chunk of
//! the events that the webhook missed.

use std::time::Duration;

use uuid::Uuid;

use super::replay;
use super::stored::{MAX_PENDING, PAUSE, deliver_stored};
use super::turns::Turns;
use crate::failpoint::failpoint;
use crate::store::recovery::{self, Criteria, Phase, Progress, Scan, Work};
use crate::store::replay::exclude;
use crate::store::{Result, Store, Transaction, jobs};

/// The number of rows that one step reads. It starts at most as many deliveries, and its
/// transaction stays short.
const CHUNK: i64 = 500;

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No job is due.
    Idle,
    Worked,
    /// The job has ended.
    Finished {
        recovery: Uuid,
        webhook: Uuid,
        recovered: i64,
    },
}

/// Runs one step of the job that has been due longest. The deliveries that it starts and its
/// progress are stored in one transaction: an interrupted step has no effect. Other replicas skip
/// the job until the transaction ends.
pub async fn step(store: &Store, turns: &mut Turns) -> Result<Step> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let step = step_in(&transaction, turns).await?;
    if step != Step::Idle {
        failpoint!("job_step_done_not_committed")?;
        transaction.commit().await?;
        failpoint!("job_step_committed_answer_not_received")?;
    }

    Ok(step)
}

/// Runs one step in a transaction, which the caller then commits.
pub async fn step_in(transaction: &Transaction<'_>, turns: &mut Turns) -> Result<Step> {
    let Some(job) = recovery::take(transaction, turns.served()).await? else {
        return Ok(Step::Idle);
    };

    // Before the work: a step that fails is a turn too.
    turns.count(&job.user);

    let ended = match &job.work {
        _ if !job.active => jobs::end(transaction, job.id).await?,
        Work::Recovery(criteria, progress) => {
            recover(transaction, job.id, criteria, *progress).await?
        }
        Work::Replay(replay) => replay::work(transaction, replay).await?,
    };

    let finished = |recovered| Step::Finished {
        recovery: job.id,
        webhook: job.webhook,
        recovered,
    };

    Ok(ended.map_or(Step::Worked, finished))
}

/// Runs a step of a recovery. If it is the last one, returns how many deliveries the recovery has
/// started.
async fn recover(
    transaction: &Transaction<'_>,
    id: Uuid,
    criteria: &Criteria,
    progress: Progress,
) -> Result<Option<i64>> {
    let Done {
        started,
        next,
        wait,
    } = work(transaction, criteria, progress).await?;
    if started > 0 {
        failpoint!("recovery_rounds_started_progress_not_stored")?;
    }

    let is_finished = next.is_none();
    let progress = next.unwrap_or(progress);
    let recovered = recovery::update(transaction, id, progress, started, is_finished, wait).await?;
    Ok(Some(recovered).filter(|_| is_finished))
}

/// The effects of a step, before they are committed.
struct Done {
    started: usize,
    /// Where to continue. `None` when the recovery is finished.
    next: Option<Progress>,
    wait: Duration,
}

async fn work(
    transaction: &Transaction<'_>,
    criteria: &Criteria,
    progress: Progress,
) -> Result<Done> {
    let webhook = criteria.webhook;

    // Redeliveries are sent at once, outside the order. Missed events queue behind the deliveries
    // that wait for each other.
    let with_parked = progress.phase == Phase::MissedEvents;
    let pending =
        recovery::count_first_attempts(transaction, webhook, MAX_PENDING, with_parked).await?;

    if pending >= MAX_PENDING {
        return Ok(Done {
            started: 0,
            next: Some(progress),
            wait: PAUSE,
        });
    }

    let mut started = 0;
    let mut next = None;

    if criteria.includes(progress.phase) {
        let Scan {
            read, last, logged, ..
        } = recovery::scan(transaction, criteria, progress, CHUNK, true).await?;
        started = match progress.phase {
            Phase::AttemptLog => recovery::start_next_rounds(transaction, webhook, &logged, true)
                .await?
                .len(),
            Phase::MissedEvents => deliver_missed(transaction, webhook, &logged.events).await?,
        };
        next = last.filter(|_| read == CHUNK).map(|position| Progress {
            position,
            ..progress
        });
    }

    if next.is_none()
        && progress.phase == Phase::AttemptLog
        && criteria.includes(Phase::MissedEvents)
    {
        next = Some(Progress {
            phase: Phase::MissedEvents,
            position: Uuid::nil(),
        });
    }

    Ok(Done {
        started,
        next,
        wait: Duration::ZERO,
    })
}

/// Creates deliveries of missed events, except those that another job has delivered in the
/// meantime. They are numbered behind the deliveries that exist, in the order of the events'
/// commits. Returns how many there are.
async fn deliver_missed(
    transaction: &Transaction<'_>,
    webhook: Uuid,
    events: &[Uuid],
) -> Result<usize> {
    let events = recovery::remove_missed(transaction, webhook, events).await?;
    if events.is_empty() {
        return Ok(0);
    }

    let ids: Vec<Uuid> = events.iter().map(|(event, _)| *event).collect();
    exclude(transaction, webhook, &ids).await?;

    Ok(deliver_stored(transaction, webhook, &events).await?.len())
}
