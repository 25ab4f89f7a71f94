//! One step of a replay: finds out which events the webhook has had, or delivers a chunk of the
//! others.
//!
//! Replayed deliveries are ordinary first attempts, and a webhook's deliveries wait in one queue.
//! So a replay never delays new events by more than one chunk: the next chunk follows when most of
//! the last one was attempted, and its size is such that this takes about a second.

use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;

use super::{MAX_PENDING, PAUSE, deliver_stored, nothing};
use crate::domain::event::delivery_id;
use crate::domain::subject::Subject;
use crate::failpoint::failpoint;
use crate::store::enqueue::{Subscription, subscriptions};
use crate::store::job_progress::{JobProgress, Phase};
use crate::store::jobs::Done;
use crate::store::recovery::{in_commit_order, remove_missed};
use crate::store::replay::{Pending, Read, Replay, StoredEvent};
use crate::store::{Result, Transaction, plan_by_index};

/// The size of the first chunk. Even a slow receiver with one request at a time answers it within a
/// minute.
const FIRST_CHUNK: i32 = 50;
const MIN_CHUNK: i32 = 10;
/// At most 500: the transaction stays short.
const MAX_CHUNK: i32 = 500;
/// The next chunk is twice as large if the last one took less than this many seconds, which include
/// the pauses before it was noticed.
const FAST: f64 = 1.0;
/// It is half as large if the last one took longer than this.
const SLOW: f64 = 2.0;
/// No more deliveries are created while the webhook has this many pending retries: most of what
/// would be created would become retries too.
const MAX_RETRIES: i64 = 10_000;
/// The number of rows of the attempt log that one step reads, which takes about 20 milliseconds.
/// The log is read up to its newest row: far fewer attempts of the webhook are recorded from one
/// step to the next, so that a step soon reads less than this.
const LOG_ROWS: i64 = 5_000;
/// The number of events that one step reads for each delivery that it may create, because not all
/// events are selected.
const EVENTS_PER_DELIVERY: i32 = 10;

pub async fn work(transaction: &Transaction<'_>, replay: &Replay) -> Result<Done> {
    plan_by_index(transaction).await?;
    let size = next_chunk_size(replay);
    let mut done = match replay.progress.phase {
        Phase::PendingDeliveries => exclude_pending(transaction, replay).await?,
        Phase::AttemptLog => exclude_logged(transaction, replay).await?,
        Phase::MissedEvents | Phase::Events => deliver_chunk(transaction, replay, size).await?,
    };

    done.started = done.created.len();
    done.chunk_size = replay.chunk_size;

    if done.started > 0 {
        failpoint!("replay_deliveries_created_progress_not_stored")?;
        done.chunk_size = size;
    }

    Ok(done)
}

/// Starts when the webhook's backlog is small: the deliveries that are pending now are read in one
/// statement.
async fn exclude_pending(transaction: &Transaction<'_>, replay: &Replay) -> Result<Done> {
    let pending = replay
        .pending(transaction, (MAX_PENDING, MAX_RETRIES))
        .await?;
    if has_backlog(pending) {
        return Ok(nothing(replay.progress, PAUSE));
    }

    replay.exclude_pending(transaction).await?;
    Ok(nothing(
        JobProgress::start_of(Phase::AttemptLog),
        Duration::ZERO,
    ))
}

async fn exclude_logged(transaction: &Transaction<'_>, replay: &Replay) -> Result<Done> {
    let Read { rows, last } = replay.exclude_logged(transaction, LOG_ROWS).await?;
    let next = match last.filter(|_| rows == LOG_ROWS) {
        Some(position) => JobProgress {
            position,
            ..replay.progress
        },
        None => JobProgress::start_of(Phase::Events),
    };

    Ok(nothing(next, Duration::ZERO))
}

async fn deliver_chunk(transaction: &Transaction<'_>, replay: &Replay, size: i32) -> Result<Done> {
    let pending = replay
        .pending(transaction, (MAX_PENDING, MAX_RETRIES))
        .await?;
    if has_backlog(pending) || !is_mostly_attempted(pending, replay.chunk.len()) {
        return Ok(nothing(replay.progress, PAUSE));
    }

    let limit = i64::from(size * EVENTS_PER_DELIVERY);
    let scan = replay.scan(transaction, limit, i64::from(size)).await?;

    let created = deliver(transaction, replay, &scan.found).await?;
    let wait = if created.is_empty() {
        Duration::ZERO
    } else {
        PAUSE
    };

    Ok(Done {
        created,
        next: scan.next,
        ..nothing(replay.progress, wait)
    })
}

fn has_backlog(pending: Pending) -> bool {
    pending.first_attempts >= MAX_PENDING || pending.retries >= MAX_RETRIES
}

/// Whether at least three quarters of the last chunk were attempted.
fn is_mostly_attempted(pending: Pending, chunk: usize) -> bool {
    pending.of_chunk.saturating_mul(4) <= chunk as i64
}

fn next_chunk_size(replay: &Replay) -> i32 {
    let last = replay.chunk_size;

    match replay.chunk_age {
        None => FIRST_CHUNK,
        Some(age) if age < FAST => (last * 2).min(MAX_CHUNK),
        Some(age) if age > SLOW => (last / 2).max(MIN_CHUNK),
        Some(_) => last,
    }
}

/// Creates the deliveries of those events that go to the webhook and that it has not had. Returns
/// their ids, in the order of the events.
async fn deliver(
    transaction: &Transaction<'_>,
    replay: &Replay,
    found: &[StoredEvent],
) -> Result<Vec<Uuid>> {
    let webhook = replay.webhook;
    let owned = subscriptions(transaction, &[&*replay.user.0], &[]).await?;
    let Some(subscription) = owned
        .iter()
        .find(|subscription| subscription.target.webhook == webhook)
    else {
        return Ok(Vec::new());
    };

    let events: Vec<Uuid> = found
        .iter()
        .filter(|event| goes_to(subscription, event))
        .map(|event| event.id)
        .collect();
    if events.is_empty() {
        return Ok(Vec::new());
    }

    // Before the exclusions are read: it waits for a recovery that is delivering the same missed
    // events.
    remove_missed(transaction, webhook, &events).await?;
    let ids: Vec<Uuid> = events
        .iter()
        .map(|event| delivery_id(*event, webhook))
        .collect();
    let excluded: HashSet<Uuid> = replay
        .excluded(transaction, &events, &ids)
        .await?
        .into_iter()
        .collect();
    let events: Vec<Uuid> = events
        .into_iter()
        .filter(|event| !excluded.contains(event))
        .collect();

    let events = in_commit_order(transaction, &events).await?;
    deliver_stored(transaction, webhook, &events).await
}

/// Whether an event goes to the webhook as it is now.
fn goes_to(subscription: &Subscription, event: &StoredEvent) -> bool {
    subscription.wants(&Subject::new(event.kind, event.label, &event.data))
}
