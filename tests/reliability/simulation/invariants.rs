//! What must hold, each with the promise that it stands for. Some are checked at every request or
//! recording, the others when everything has ended.

mod disablement;
mod numbering;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use uuid::Uuid;
use walhook::domain::delivery::{Attempted, Next, Outcome};
use walhook::domain::ordering::Ordering;
use walhook::handoff::DETACHED;
use walhook::record::{Decided, Recorded};

use super::plan::{JITTER, WAITS};
use super::world::{Process, World};
use crate::support::memory::{Line, Reason, Switched};

pub use disablement::waiting_for_the_minimum_duration;

/// The most attempts of a round.
const MAX_ATTEMPTS: u16 = 10;
/// The most steps of a seed: about fifty times what most need.
const MAX_STEPS: u64 = 1_000_000;
/// How long a delivery to a fast receiver may wait while others are slow: about as long as one
/// request of a slow one may take.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// How soon after a webhook was switched off its requests end: a read of it counts for five
/// milliseconds, and its answer takes a few more.
const NOTICE_TIME: Duration = Duration::from_millis(20);

/// An invariant that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub invariant: &'static str,
    pub detail: String,
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub struct Request {
    pub at: Duration,
    pub delivery: Uuid,
    pub webhook: Uuid,
    pub order_key: Option<i64>,
    pub sequence: Option<i64>,
    pub round: u16,
    pub attempt: u16,
    pub is_accepted: bool,
    pub lease: Uuid,
    /// Whether too little was left of the lease.
    pub is_late: bool,
    pub url: Arc<str>,
    /// The activation of the webhook as the process has read it.
    pub activation: i32,
}

type Check = Result<(), Broken>;

fn require(holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) -> Check {
    if holds {
        Ok(())
    } else {
        Err(Broken {
            invariant,
            detail: detail(),
        })
    }
}

/// At every step. A process that has nothing to do waits: without this limit, a loop without a wait
/// would not end.
pub fn no_process_loops(world: &World) -> Check {
    require(
        world.events <= MAX_STEPS,
        "no process loops without a wait",
        || format!("more than {MAX_STEPS} steps"),
    )
}

/// Before a request is sent.
pub fn before_request(world: &World, process: Process, request: &Request) -> Check {
    order_is_kept(world, request)?;
    concurrency_is_limited(world, process, request)?;
    inactive_webhooks_get_nothing(world, request)?;
    cancelled_deliveries_are_not_sent(world, request)?;
    edits_apply(world, request)?;
    memory_is_limited(world, process)?;
    requests_fit_into_leases(request)?;

    require(
        request.attempt <= MAX_ATTEMPTS,
        "at most ten attempts a round",
        || format!("{request:?}"),
    )
}

/// After a transaction that has recorded attempts.
pub fn after_recording(world: &World, batch: &[Decided], recorded: &Recorded) -> Check {
    disablement::no_webhook_is_disabled_early(world, batch, recorded)?;
    disablement::failing_webhooks_are_disabled(world, batch, recorded)?;
    retries_are_due_when_promised(world, batch, recorded)
}

/// After a webhook was switched on. What was pending when it was switched off was cancelled before,
/// and is not revived.
pub fn after_activation(world: &World, webhook: Uuid) -> Check {
    let pending = world
        .store
        .state()
        .deliveries
        .values()
        .filter(|row| row.webhook == webhook)
        .count();
    require(pending == 0, "an activation revives nothing", || {
        format!("{pending} of {webhook} are pending")
    })
}

/// When no event is left that could change anything.
pub fn at_the_end(world: &World) -> Check {
    every_event_is_stored_once(world)?;
    numbering::webhooks_get_events_of_their_owners(world)?;
    numbering::deliveries_are_numbered_without_gaps(world)?;
    numbering::deliveries_are_numbered_in_commit_order(world)?;
    numbering::attempts_have_the_number_of_their_delivery(world)?;
    nothing_is_stranded(world)?;
    every_delivery_has_one_final_state(world)?;
    attempts_are_numbered_once(world)?;
    only_the_holder_records(world)?;
    delivered_means_accepted(world)?;
    every_request_is_logged(world)?;
    retries_keep_to_the_schedule(world)?;
    nothing_is_repeated_without_a_fault(world)?;
    disablement::disabled_once_per_streak(world)?;
    disablement::counters_equal_the_log(world)?;
    permits_and_budget_are_returned(world)?;
    attempts_are_not_kept(world)?;

    slow_receivers_delay_nobody(world)
}

/// Ordering: a delivery starts only when all deliveries of its key with lower numbers have ended.
fn order_is_kept(world: &World, request: &Request) -> Check {
    let (Some(key), Some(sequence)) = (request.order_key, request.sequence) else {
        return Ok(());
    };

    let mut pending = world.store.state().deliveries.iter();
    let earlier = pending.find(|(id, row)| {
        let is_earlier = row.sequence.is_some_and(|other| other < sequence);
        row.webhook == request.webhook
            && row.order_key == Some(key)
            && is_earlier
            && **id != request.delivery
    });

    require(earlier.is_none(), "order per key", || {
        format!("{request:?} is sent before {earlier:?} has ended")
    })
}

/// Concurrency: no process has more requests in flight than its limits allow: in total, to one
/// webhook, or as retries, which have at most half of the permits. One late request of each webhook
/// may go on without a permit.
fn concurrency_is_limited(world: &World, process: Process, request: &Request) -> Check {
    let Some(running) = world.replicas[process.replica].running(process) else {
        return Ok(());
    };

    let total = running.in_flight.values().sum::<usize>();
    let of_webhook = running.in_flight[&request.webhook];
    let busy = running
        .in_flight
        .values()
        .filter(|in_flight| **in_flight > 0)
        .count();
    let detached = busy.min(world.settings.concurrency * DETACHED);
    let most = world.settings.concurrency + detached;
    let is_within = total <= most && of_webhook <= world.settings.per_webhook_concurrency;

    require(is_within, "concurrency limits", || {
        format!("{total} in flight, {of_webhook} of them to one webhook")
    })?;
    let retries = running.retries_in_flight;
    let most = (world.settings.concurrency / 2).max(1) + detached;
    require(
        retries <= most,
        "retries leave permits to fresh deliveries",
        || format!("{retries} of {most} in flight"),
    )
}

/// Bounded memory: a process holds no more deliveries than its budget admits, of which the smallest
/// has two bytes of data.
fn memory_is_limited(world: &World, process: Process) -> Check {
    let Some(running) = world.replicas[process.replica].running(process) else {
        return Ok(());
    };

    let held = running.held();
    let holds = world.plan.free_bytes.is_none_or(|free| held <= free / 2);
    require(holds, "a process holds what its budget admits", || {
        format!("it holds {held}")
    })
}

/// A webhook that was switched off gets no more requests, except those that start within
/// [`NOTICE_TIME`]. If it was switched on again, it gets none for the deliveries that were
/// cancelled. Only while the store answers at once: a read of the webhook may take long.
fn inactive_webhooks_get_nothing(world: &World, request: &Request) -> Check {
    let state = world.store.state();
    let off = |switched: &&Switched| switched.webhook == request.webhook && !switched.active;

    let Some(off) = state
        .switched
        .iter()
        .rfind(off)
        .filter(|_| world.plan.is_calm)
    else {
        return Ok(());
    };

    let is_recent = state.now.duration_since(off.at).unsigned_abs() <= NOTICE_TIME;
    let is_active = state
        .webhooks
        .get(&request.webhook)
        .is_some_and(|webhook| webhook.target.active);
    let is_this_round =
        |line: &Line| line.delivery == request.delivery && line.round == request.round;

    // A delivery that is being stored is not gone.
    let is_cancelled = !state.deliveries.contains_key(&request.delivery)
        && state
            .log
            .iter()
            .any(|line| is_this_round(line) && line.reason == Reason::Cancelled);
    require(
        is_recent || is_active && !is_cancelled,
        "an inactive webhook gets no requests",
        || format!("{request:?}, switched off at {}", off.at),
    )
}

/// A delivery that was cancelled because its webhook was switched off is not sent after the webhook
/// was switched on again, except in another round: no process that knows of the new activation
/// sends it, however long it has had the delivery.
fn cancelled_deliveries_are_not_sent(world: &World, request: &Request) -> Check {
    if request.activation == 0 {
        return Ok(());
    }

    let state = world.store.state();
    let is_cancelled = |line: &&Line| {
        line.delivery == request.delivery
            && line.round == request.round
            && line.reason == Reason::Cancelled
    };

    let Some(line) = state.log.iter().rfind(is_cancelled) else {
        return Ok(());
    };

    let is_earlier = |on: &&Switched| {
        on.webhook == line.webhook && on.active && on.transaction < line.transaction
    };

    // The first is the creation of the webhook.
    let activations = state.switched.iter().filter(is_earlier).count() as i32;
    require(
        request.activation < activations,
        "a cancelled delivery is not sent",
        || format!("{request:?}, {line:?}"),
    )
}

/// An edit of a webhook applies to all requests that start later than [`NOTICE_TIME`]. Only while
/// the store answers at once.
fn edits_apply(world: &World, request: &Request) -> Check {
    let Some(edited_at) = world
        .edited
        .get(&request.webhook)
        .filter(|_| world.plan.is_calm)
    else {
        return Ok(());
    };

    let Some(webhook) = world.store.state().webhooks.get(&request.webhook) else {
        return Ok(());
    };

    let holds =
        world.now.saturating_sub(*edited_at) <= NOTICE_TIME || *request.url == *webhook.target.url;
    require(holds, "an edit applies to all later requests", || {
        format!("{request:?}, edited at {edited_at:?}")
    })
}

/// Leases: a request starts only if its answer can be recorded before the lease ends.
fn requests_fit_into_leases(request: &Request) -> Check {
    require(!request.is_late, "a request fits into its lease", || {
        format!("{request:?}")
    })
}

/// A fresh delivery is sent at once: what a transaction hands off while it is open belongs to the
/// activation of the webhook that it has read. Of another activation, it would count as cancelled,
/// and wait until its lease has ended.
pub fn handed_off_deliveries_are_current(world: &World, handed_off: &[(Uuid, i32)]) -> Check {
    let webhooks = &world.store.state().webhooks;
    let is_current =
        |(id, activation): &&(Uuid, i32)| webhooks[id].target.activation == *activation;
    let other = handed_off.iter().find(|delivery| !is_current(delivery));

    require(other.is_none(), "a fresh delivery is sent at once", || {
        format!("handed off for {other:?}")
    })
}

/// A retry is due after the wait of the schedule and at most the jitter, or when the receiver asks
/// for it, whichever is later.
fn retries_are_due_when_promised(world: &World, batch: &[Decided], recorded: &Recorded) -> Check {
    let state = world.store.state();

    for (decided, _) in batch
        .iter()
        .zip(&recorded.counted)
        .filter(|(_, counted)| **counted)
    {
        let Attempted { delivery, attempt } = &decided.attempted;
        let row = state
            .deliveries
            .get(&delivery.id)
            .filter(|row| row.attempt == delivery.attempt + 1);
        let Some(due_at) = row.and_then(|row| row.due_at) else {
            continue;
        };

        let waits = Duration::try_from(due_at.duration_since(state.now)).unwrap_or_default();
        let wait = Duration::from_millis(WAITS[usize::from(delivery.attempt) - 1]);
        let asked = attempt
            .sent
            .as_ref()
            .and_then(|sent| sent.retry_after)
            .unwrap_or_default();
        let promised = wait.max(asked)..=(wait + JITTER).max(asked);

        require(
            promised.contains(&waits),
            "a retry is due when promised",
            || {
                format!(
                    "{} waits for {waits:?} after attempt {}, not for {promised:?}",
                    delivery.id, delivery.attempt
                )
            },
        )?;
    }

    Ok(())
}

/// Returns whether a retry is due later than the schedule alone would have it, and whether the
/// receiver has asked for that.
pub fn is_postponed(decided: &Decided) -> Option<bool> {
    let Next::Retry { after, .. } = decided.next else {
        return None;
    };

    let Attempted { delivery, attempt } = &decided.attempted;
    let wait = Duration::from_millis(WAITS[usize::from(delivery.attempt) - 1]);
    let is_asked = attempt
        .sent
        .as_ref()
        .is_some_and(|sent| sent.retry_after.is_some());

    match is_asked {
        true => (after > wait + JITTER).then_some(true),
        false => (after > wait + JITTER / 2).then_some(false),
    }
}

/// Ordering: whatever ends a delivery makes the next one of its key due, in the same transaction.
pub fn nothing_waits_for_nothing(stranded: usize) -> Check {
    require(
        stranded == 0,
        "no delivery waits for one that has ended",
        || format!("{stranded} do"),
    )
}

/// Nothing is lost and nothing is stored twice: each event has one delivery for each webhook of its
/// owner, or the webhook missed it because it was inactive.
fn every_event_is_stored_once(world: &World) -> Check {
    let state = world.store.state();
    let stored = state.events.len();
    let committed = world.stream.len();

    require(stored == committed, "every event is stored once", || {
        format!("{stored} of {committed} are stored")
    })?;
    let mut created = BTreeSet::new();
    for delivery in state.created.iter() {
        let is_new = created.insert((delivery.webhook, delivery.event));
        require(is_new, "no delivery is created twice", || {
            format!("{delivery:?}")
        })?;
    }

    for (webhook, found) in state.webhooks.iter() {
        for (event, _) in state
            .events
            .iter()
            .filter(|(_, event)| event.user == found.user)
        {
            let is_known = created.contains(&(*webhook, *event))
                || state.missed.contains_key(&(*webhook, *event));
            require(is_known, "every event goes to each webhook", || {
                format!("{event} has no delivery to {webhook}")
            })?;
        }
    }

    Ok(())
}

/// Once faults stop, everything ends: deliveries, jobs, and the storing of events.
fn nothing_is_stranded(world: &World) -> Check {
    let state = world.store.state();
    let pending: Vec<_> = state.deliveries.iter().take(5).collect();

    require(pending.is_empty(), "every delivery ends", || {
        format!("{} are pending: {pending:?}", state.deliveries.len())
    })?;
    let job = state.jobs.iter().find(|(_, job)| !job.is_finished);
    require(job.is_none(), "every job ends", || format!("{job:?}"))
}

fn by_delivery(world: &World) -> BTreeMap<Uuid, Vec<&Line>> {
    let mut lines: BTreeMap<Uuid, Vec<&Line>> = BTreeMap::new();

    for line in world.store.state().log.iter() {
        lines.entry(line.delivery).or_default().push(line);
    }

    lines
}

/// Each delivery ends once in its last round, also if its webhook was deleted. An earlier round
/// ends at most once: a redelivery may replace what was pending.
fn every_delivery_has_one_final_state(world: &World) -> Check {
    let state = world.store.state();
    let lines = by_delivery(world);

    for created in state.created.iter() {
        let last = state.rounds.get(&created.delivery).copied().unwrap_or(1);
        let lines = lines.get(&created.delivery).map_or(&[][..], Vec::as_slice);
        let is_end =
            |line: &&&Line| line.reason != Reason::Superseded && line.outcome != Outcome::Failed;

        for round in 1..=last {
            let ends = lines
                .iter()
                .filter(is_end)
                .filter(|line| line.round == round)
                .count();
            let holds = ends == 1 || ends == 0 && round < last;
            require(holds, "exactly one final state per delivery", || {
                format!(
                    "delivery {} has {ends} in round {round} of {last}: {lines:#?}",
                    created.delivery
                )
            })?;
        }
    }

    Ok(())
}

/// The attempts of a round that count are numbered from one without gaps, and each is recorded
/// once. There are at most ten.
fn attempts_are_numbered_once(world: &World) -> Check {
    for (delivery, lines) in by_delivery(world) {
        let mut counted: BTreeMap<u16, Vec<u16>> = BTreeMap::new();

        for line in lines.iter().filter(|line| line.reason == Reason::Counted) {
            counted.entry(line.round).or_default().push(line.attempt);
        }

        for (round, attempts) in counted {
            let expected: Vec<u16> = (1..=attempts.len() as u16).collect();
            let holds = attempts == expected && attempts.len() <= usize::from(MAX_ATTEMPTS);
            require(holds, "attempt numbers are recorded once", || {
                format!("delivery {delivery}, round {round}: {attempts:?}")
            })?;
        }
    }

    Ok(())
}

/// Fencing: an attempt counts only if no other process, redelivery or cancellation has taken the
/// delivery since its lease was granted. One that was superseded is logged at most once.
fn only_the_holder_records(world: &World) -> Check {
    let state = world.store.state();
    let mut recorded = BTreeSet::new();
    let mut grants: BTreeMap<Uuid, Vec<(u64, Option<Uuid>)>> = BTreeMap::new();
    for grant in state.grants.iter() {
        grants
            .entry(grant.delivery)
            .or_default()
            .push((grant.transaction, grant.lease));
    }

    for line in state
        .log
        .iter()
        .filter(|line| line.reason != Reason::Cancelled)
    {
        let is_first = recorded.insert((line.delivery, line.lease));
        require(is_first, "a lease records one attempt", || {
            format!("{line:?}")
        })?;

        let of_delivery = grants.get(&line.delivery).map_or(&[][..], Vec::as_slice);
        let holder = of_delivery
            .iter()
            .rev()
            .find(|(transaction, _)| *transaction < line.transaction);
        let holds = line.reason == Reason::Superseded
            || holder.is_some_and(|(_, lease)| *lease == line.lease);

        require(holds, "only the holder of the lease records", || {
            format!("{line:?}, held by {holder:?}")
        })?;
    }

    Ok(())
}

/// A delivery is logged as delivered only if its receiver accepted that very attempt.
fn delivered_means_accepted(world: &World) -> Check {
    let accepted: BTreeSet<(Uuid, u16, u16)> = world
        .requests
        .iter()
        .filter(|request| request.is_accepted)
        .map(|request| (request.delivery, request.round, request.attempt))
        .collect();

    let delivered = world
        .store
        .state()
        .log
        .iter()
        .filter(|line| line.outcome == Outcome::Delivered);
    for line in delivered {
        let is_accepted = accepted.contains(&(line.delivery, line.round, line.attempt));
        require(is_accepted, "delivered means accepted", || {
            format!("{line:?}")
        })?;
    }

    Ok(())
}

/// Every request of a webhook that exists is in the attempt log, also if its delivery was cancelled
/// or redelivered meanwhile, unless a process or a transaction is lost.
fn every_request_is_logged(world: &World) -> Check {
    let state = world.store.state();
    let logged: BTreeSet<(Uuid, Option<Uuid>)> = state
        .log
        .iter()
        .map(|line| (line.delivery, line.lease))
        .collect();

    for request in world.requests.iter().filter(|_| world.plan.is_calm) {
        let holds = logged.contains(&(request.delivery, Some(request.lease)));
        let is_deleted = !state.webhooks.contains_key(&request.webhook);
        require(holds || is_deleted, "every request is logged", || {
            format!("{request:?}")
        })?;
    }

    Ok(())
}

/// A retry is never earlier than its schedule by the store's clock, and only the last attempt of
/// the schedule fails permanently.
fn retries_keep_to_the_schedule(world: &World) -> Check {
    let mut first: BTreeMap<(Uuid, u16, u16), Duration> = BTreeMap::new();

    for request in &world.requests {
        first
            .entry((request.delivery, request.round, request.attempt))
            .or_insert(request.at);
    }

    for ((delivery, round, attempt), at) in &first {
        let Some(next) = first.get(&(*delivery, *round, attempt + 1)) else {
            continue;
        };

        let is_between = |(set_at, step): &&(Duration, SignedDuration)| {
            (*at..=*next).contains(set_at) && step.is_positive()
        };

        let skipped: Duration = world
            .store_steps
            .iter()
            .filter(is_between)
            .map(|(_, step)| step.unsigned_abs())
            .sum();

        let waited = next.saturating_sub(*at) + skipped;
        let holds = waited >= Duration::from_millis(WAITS[usize::from(*attempt) - 1]);
        require(holds, "a retry is never early", || {
            format!("{delivery}, attempt {attempt}: {waited:?}")
        })?;
    }

    let given_up = |line: &&Line| line.outcome == Outcome::PermanentlyFailed && line.is_failure;
    let early = world
        .store
        .state()
        .log
        .iter()
        .filter(given_up)
        .find(|line| line.attempt != MAX_ATTEMPTS);

    require(
        early.is_none(),
        "a delivery fails permanently after ten attempts",
        || format!("{early:?}"),
    )
}

/// If only receivers are slow or fail, one that answers at once gets each delivery once.
fn nothing_is_repeated_without_a_fault(world: &World) -> Check {
    let mut sent = BTreeSet::new();

    for request in world
        .requests
        .iter()
        .filter(|request| world.plan.is_calm && request.webhook == world.webhooks[0])
    {
        let is_new = sent.insert((request.delivery, request.round, request.attempt));
        require(is_new, "nothing is repeated without a fault", || {
            format!("{request:?}")
        })?;
    }

    Ok(())
}

/// Permits and budget are returned: a process that has nothing to do holds none.
fn permits_and_budget_are_returned(world: &World) -> Check {
    for (number, replica) in world.replicas.iter().enumerate() {
        let Some(running) = replica.current() else {
            continue;
        };

        let held = (
            running.held(),
            running.handoff.budget.counters().in_flight(),
        );
        require(held == (0, 0), "permits and budget are returned", || {
            format!("replica {number} holds {held:?}")
        })?;
    }

    Ok(())
}

/// An attempt whose delivery is not found is kept until its lease ends, and no longer.
fn attempts_are_not_kept(world: &World) -> Check {
    let mut running = world
        .replicas
        .iter()
        .filter_map(|replica| replica.current());
    require(
        running.all(|running| running.recorder.is_idle()),
        "no attempt is kept for ever",
        || "some are".to_owned(),
    )
}

/// A slow or dead receiver delays nobody else: a delivery to a receiver that is fast starts within
/// [`LONGEST_WAIT`], if receivers are all that goes wrong.
fn slow_receivers_delay_nobody(world: &World) -> Check {
    if !world.plan.is_calm {
        return Ok(());
    }

    let mut started: BTreeMap<Uuid, Duration> = BTreeMap::new();

    for request in &world.requests {
        started.entry(request.delivery).or_insert(request.at);
    }

    let state = world.store.state();
    let is_free = |id: &Uuid| {
        state
            .webhooks
            .get(id)
            .is_some_and(|webhook| webhook.ordering == Ordering::None)
    };

    let fast =
        |id: &Uuid| world.receivers[id].was_always_fast && is_free(id) && *id == world.webhooks[0];
    for created in state
        .created
        .iter()
        .filter(|created| fast(&created.webhook))
    {
        let at = Duration::try_from(created.at.duration_since(world.began_at)).unwrap_or_default();
        let waited = started
            .get(&created.delivery)
            .map(|started| started.saturating_sub(at));
        let holds = waited.is_some_and(|waited| waited <= LONGEST_WAIT);

        require(holds, "a slow receiver delays nobody else", || {
            format!("{created:?} waited {waited:?}")
        })?;
    }

    Ok(())
}
