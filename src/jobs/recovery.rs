//! One step of a recovery: redelivers a chunk of the attempt log, or delivers a chunk of the events
//! that the webhook missed.

use std::time::Duration;

use uuid::Uuid;

use super::{MAX_PENDING, PAUSE, deliver_stored, nothing};
use crate::failpoint::failpoint;
use crate::store::job_progress::{JobProgress, Phase};
use crate::store::jobs::{Done, LockedJob};
use crate::store::recovery::{self, RecoveryScan, Scope};
use crate::store::replay::exclude;
use crate::store::{Result, Transaction};

/// The number of rows that one step reads. It starts at most as many deliveries, and its
/// transaction stays short.
const CHUNK: i64 = 500;

pub async fn work(
    transaction: &Transaction<'_>,
    LockedJob {
        webhook, progress, ..
    }: &LockedJob,
    scope: &Scope,
) -> Result<Done> {
    // Redeliveries are sent at once, outside the order. Missed events queue behind the deliveries
    // that wait for each other.
    let with_parked = progress.phase == Phase::MissedEvents;
    let pending =
        recovery::count_first_attempts(transaction, *webhook, MAX_PENDING, with_parked).await?;

    if pending >= MAX_PENDING {
        return Ok(nothing(*progress, PAUSE));
    }

    let mut done = Done {
        next: None,
        ..nothing(*progress, Duration::ZERO)
    };

    if scope.includes(progress.phase) {
        let RecoveryScan {
            read, last, logged, ..
        } = recovery::scan(transaction, *webhook, scope, *progress, CHUNK, true).await?;
        done.started = match progress.phase {
            Phase::MissedEvents => deliver_missed(transaction, *webhook, &logged.events).await?,
            _ => recovery::start_next_rounds(transaction, *webhook, &logged, true)
                .await?
                .len(),
        };
        done.next = last.filter(|_| read == CHUNK).map(|position| JobProgress {
            position,
            ..*progress
        });
    }

    if done.next.is_none() && progress.phase == Phase::AttemptLog && scope.missed {
        done.next = Some(JobProgress::start_of(Phase::MissedEvents));
    }

    if done.started > 0 {
        failpoint!("recovery_rounds_started_progress_not_stored")?;
    }

    Ok(done)
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
