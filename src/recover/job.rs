//! One step of a recovery: a chunk of the attempt log, or of the events that the webhook missed.

use std::time::Duration;

use uuid::Uuid;

use crate::domain::event::delivery_id;
use crate::store::enqueue::{NewDelivery, NewLease, insert_deliveries};
use crate::store::recovery::{self, Job, Phase, Progress, Range, Scan};
use crate::store::{Result, Store, Transaction};

/// Rows that one step reads. It starts at most as many deliveries.
const CHUNK: i64 = 500;
/// No more deliveries are started while the webhook has this many pending first attempts: new events must not queue behind old
/// ones.
const MAX_PENDING: i64 = 500;
/// How long such a recovery pauses.
const PAUSE: Duration = Duration::from_millis(200);

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No recovery is due.
    Idle,
    Worked,
    Finished {
        recovery: Uuid,
        webhook: Uuid,
        recovered: i64,
    },
}

/// What a step did.
struct Done {
    started: usize,
    /// Where to continue. `None` when the recovery is finished.
    next: Option<Progress>,
    wait: Duration,
}

/// Runs one step of the recovery that has been due longest. What the step does and its progress are one transaction, and other
/// replicas skip the recovery until it ends.
pub async fn step(store: &Store) -> Result<Step> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let Some(job) = recovery::take(&transaction).await? else { return Ok(Step::Idle) };
    let Done { started, next, wait } = work(&transaction, &job).await?;
    let progress = next.unwrap_or(job.progress);
    let recovered = recovery::update(&transaction, job.id, progress, started, next.is_none(), wait).await?;
    transaction.commit().await?;
    Ok(match next {
        Some(_) => Step::Worked,
        None => Step::Finished { recovery: job.id, webhook: job.webhook, recovered },
    })
}

async fn work(transaction: &Transaction<'_>, job: &Job) -> Result<Done> {
    if !job.active {
        return Ok(Done { started: 0, next: None, wait: Duration::ZERO });
    }
    if recovery::count_first_attempts(transaction, job.webhook, MAX_PENDING).await? >= MAX_PENDING {
        return Ok(Done { started: 0, next: Some(job.progress), wait: PAUSE });
    }
    let Progress { phase, position } = job.progress;
    let range = Range { webhook: job.webhook, since: job.since, until: job.until, after: position };
    let (started, scan) = match phase {
        Phase::AttemptLog if job.outcomes.is_empty() => (0, None),
        Phase::AttemptLog => {
            let found = range.scan_attempts(transaction, &job.outcomes, CHUNK, true).await?;
            let started = recovery::start_next_rounds(transaction, job.webhook, found.items(), true).await?.len();
            (started, Some(found.scan))
        }
        Phase::MissedEvents => {
            let found = range.scan_missed(transaction, CHUNK, true).await?;
            (deliver_missed(transaction, job.webhook, &found.events).await?, Some(found.scan))
        }
    };
    Ok(Done { started, next: next(job, scan), wait: Duration::ZERO })
}

/// Where the recovery continues after a chunk: behind it if it was full, else in the next phase.
fn next(job: &Job, chunk: Option<Scan>) -> Option<Progress> {
    let phase = job.progress.phase;
    match chunk.filter(|scan| scan.read == CHUNK).and_then(|scan| scan.last) {
        Some(position) => Some(Progress { phase, position }),
        None if phase == Phase::AttemptLog && job.missed => {
            Some(Progress { phase: Phase::MissedEvents, position: Uuid::nil() })
        }
        None => None,
    }
}

/// Creates deliveries of missed events. Returns how many: those that another recovery delivers meanwhile are left out.
async fn deliver_missed(transaction: &Transaction<'_>, webhook: Uuid, events: &[Uuid]) -> Result<usize> {
    if events.is_empty() {
        return Ok(0);
    }
    let events = recovery::remove_missed(transaction, webhook, events).await?;
    let delivery =
        |event: &Uuid| NewDelivery { id: delivery_id(*event, webhook), webhook, event: *event, leased: false };
    let deliveries: Vec<NewDelivery> = events.iter().map(delivery).collect();
    insert_deliveries(transaction, &deliveries, NewLease::NONE).await?;
    Ok(deliveries.len())
}
