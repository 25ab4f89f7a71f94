//! When webhooks are disabled, and the counters that decide it. Everything is computed again from
//! the attempt log.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;
use walhook::domain::delivery::Outcome;
use walhook::domain::disablement::CountedFailures;
use walhook::domain::webhook::Tally;
use walhook::record::{Decided, Recorded};

use super::{Check, require};
use crate::simulation::world::World;
use crate::support::memory::{Line, NoticeKind, Reason, Switched};

/// A webhook's counters according to its attempt log.
#[derive(Debug, Default)]
struct Logged {
    successes: u64,
    failures: u64,
    consecutive: u64,
    /// When the first failure since the last success was recorded.
    failing_since: Option<Timestamp>,
}

impl Logged {
    fn of(world: &World, id: Uuid) -> Logged {
        let state = world.store.state();
        let mut logged = Logged::default();
        let counted_from = state
            .webhooks
            .get(&id)
            .map_or(0, |webhook| webhook.counted_from);
        let counted = |line: &Line| line.webhook == id && line.reason == Reason::Counted;

        for (index, line) in state
            .log
            .iter()
            .enumerate()
            .filter(|(_, line)| counted(line))
        {
            if line.outcome == Outcome::Delivered {
                logged.successes += 1;
                (logged.consecutive, logged.failing_since) = (0, None);
            } else if line.is_failure && index >= counted_from {
                (logged.failures, logged.consecutive) =
                    (logged.failures + 1, logged.consecutive + 1);
                logged.failing_since.get_or_insert(line.at);
            }
        }

        logged
    }

    /// Whether the failures have reached the threshold of the policy in force, and whether they
    /// have lasted for long enough.
    fn reaches(&self, world: &World) -> (bool, bool) {
        let threshold = u64::from(world.policy.threshold);

        match world.policy.counted {
            CountedFailures::Cumulative => (self.failures >= threshold, true),
            CountedFailures::Consecutive { min_duration } => {
                let lasted = |since| world.store.state().now.duration_since(since);
                let lasted = self
                    .failing_since
                    .and_then(|since| Duration::try_from(lasted(since)).ok());
                (
                    self.consecutive >= threshold,
                    lasted.is_some_and(|lasted| lasted >= min_duration),
                )
            }
        }
    }
}

/// Returns the webhooks to which a batch has added failures.
fn failed(batch: &[Decided], recorded: &Recorded) -> BTreeSet<Uuid> {
    let counted = batch
        .iter()
        .zip(&recorded.counted)
        .filter(|(_, counted)| **counted)
        .map(|(decided, _)| decided);
    let counts = |decided: &&Decided| {
        let mut tally = Tally::default();
        tally.add(&decided.attempted.attempt);
        tally.last_failure.is_some()
    };

    counted
        .filter(counts)
        .map(|decided| decided.attempted.delivery.webhook)
        .collect()
}

/// A webhook is disabled only if its failures have reached the threshold and have lasted for the
/// minimum duration, or if its receiver has answered that it is gone and the policy disables such
/// webhooks.
pub fn no_webhook_is_disabled_early(
    world: &World,
    batch: &[Decided],
    recorded: &Recorded,
) -> Check {
    for disabled in &recorded.disabled {
        let is_gone = |(decided, counted): (&Decided, &bool)| {
            let is_410 = decided.attempted.attempt.answer.status() == Some(410);
            *counted && is_410 && decided.attempted.delivery.webhook == disabled.webhook
        };

        let is_gone = world.policy.on_gone && batch.iter().zip(&recorded.counted).any(is_gone);
        let logged = Logged::of(world, disabled.webhook);
        let holds = is_gone || logged.reaches(world) == (true, true);

        require(holds, "no webhook is disabled early", || {
            format!("{disabled:?}, {logged:?}, {:?}", world.policy)
        })?;
    }

    Ok(())
}

/// Disablement happens in the transaction that records the failure that reaches the threshold, or
/// the first one after the minimum duration. Failures that are recorded while the webhook is
/// inactive count too: after its owner has activated it, the next failure disables it.
pub fn failing_webhooks_are_disabled(
    world: &World,
    batch: &[Decided],
    recorded: &Recorded,
) -> Check {
    let active = failed(batch, recorded)
        .into_iter()
        .filter(|id| world.store.state().is_active(*id));
    let overdue = active
        .map(|id| (id, Logged::of(world, id)))
        .find(|(_, logged)| logged.reaches(world) == (true, true));
    require(
        overdue.is_none(),
        "a webhook at the threshold is disabled",
        || format!("{overdue:?}, {:?}", world.policy),
    )
}

/// Returns how many webhooks of a batch only the minimum duration has kept from being disabled.
pub fn waiting_for_the_minimum_duration(
    world: &World,
    batch: &[Decided],
    recorded: &Recorded,
) -> usize {
    let active = failed(batch, recorded)
        .into_iter()
        .filter(|id| world.store.state().is_active(*id));
    active
        .filter(|id| Logged::of(world, *id).reaches(world) == (true, false))
        .count()
}

/// A webhook is disabled once for each time that it was switched on, with one notice for its owner.
pub fn disabled_once_per_streak(world: &World) -> Check {
    let state = world.store.state();

    for webhook in &world.webhooks {
        let mut was_active = false;

        for Switched { active, .. } in state
            .switched
            .iter()
            .filter(|switched| switched.webhook == *webhook)
        {
            require(
                *active != was_active,
                "a webhook is disabled once per streak",
                || format!("{webhook}"),
            )?;
            was_active = *active;
        }
    }

    let off = state.switched.iter().filter(|switched| !switched.active);
    let switched_off: BTreeSet<(Uuid, u64)> = off
        .map(|switched| (switched.webhook, switched.transaction))
        .collect();
    let mut noticed = BTreeSet::new();

    for notice in state
        .notices
        .iter()
        .filter(|notice| notice.kind == NoticeKind::Disabled)
    {
        let place = (notice.webhook, notice.transaction);
        let holds = switched_off.contains(&place) && noticed.insert(place);
        require(holds, "each disablement has one notice", || {
            format!("{notice:?}")
        })?;
    }

    Ok(())
}

/// The counters of a webhook equal what its attempt log contains.
pub fn counters_equal_the_log(world: &World) -> Check {
    for (id, webhook) in world.store.state().webhooks.iter() {
        let logged = Logged::of(world, *id);
        let counters = (
            webhook.successes,
            webhook.failures,
            webhook.consecutive_failures,
            webhook.failing_since,
        );

        let holds = counters
            == (
                logged.successes,
                logged.failures,
                logged.consecutive,
                logged.failing_since,
            );

        require(holds, "counters equal the log", || {
            format!("{id}: {counters:?}, {logged:?}")
        })?;
    }

    Ok(())
}
