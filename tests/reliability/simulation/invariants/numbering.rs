//! Whose events a webhook gets, and how its deliveries are numbered.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Check, require};
use crate::simulation::world::World;
use crate::support::memory::Created;

/// Tenant isolation: a webhook gets, or misses, only events of its owner.
pub fn webhooks_get_events_of_their_owners(world: &World) -> Check {
    let state = world.store.state();
    let created = state
        .created
        .iter()
        .map(|created| (created.webhook, created.event));
    for (webhook, event) in created.chain(state.missed.keys().copied()) {
        let owner = &world.owners[&webhook];
        let user = &state.events[&event].user;
        require(
            owner == user,
            "a webhook gets events of its owner only",
            || format!("webhook {webhook} of {owner:?} has event {event} of {user:?}"),
        )?;
    }

    Ok(())
}

/// The deliveries of each webhook, in the order in which they were created, and of one transaction
/// by number.
fn by_webhook(world: &World) -> BTreeMap<Uuid, Vec<Created>> {
    let mut by_webhook: BTreeMap<Uuid, Vec<Created>> = BTreeMap::new();

    for created in world.store.state().created.iter() {
        by_webhook
            .entry(created.webhook)
            .or_default()
            .push(*created);
    }

    by_webhook
        .values_mut()
        .for_each(|created| created.sort_by_key(|one| (one.transaction, one.sequence)));
    by_webhook
}

/// A webhook's deliveries are numbered from 1 without gaps, in the order in which they are created.
pub fn deliveries_are_numbered_without_gaps(world: &World) -> Check {
    for (webhook, created) in by_webhook(world) {
        let numbers = created.iter().map(|created| created.sequence);
        let holds = numbers.clone().eq((1..=created.len() as i64).map(Some));
        let numbers = || numbers.collect::<Vec<_>>();

        require(holds, "numbers have no gaps", || {
            format!("webhook {webhook}: {:?}", numbers())
        })?;
    }

    Ok(())
}

/// Deliveries that are stored with their events are numbered in the order of the commits, of which
/// the ids of events are here. So are those of one chunk of a job.
pub fn deliveries_are_numbered_in_commit_order(world: &World) -> Check {
    let events = &world.store.state().events;
    let is_fresh = |created: &&Created| events[&created.event].transaction == created.transaction;

    for created in by_webhook(world).into_values() {
        let fresh: Vec<&Created> = created.iter().filter(is_fresh).collect();
        let of_one_transaction = created
            .windows(2)
            .filter(|pair| pair[0].transaction == pair[1].transaction);
        let mut pairs = of_one_transaction
            .map(|pair| (&pair[0], &pair[1]))
            .chain(fresh.windows(2).map(|pair| (pair[0], pair[1])));
        let other = pairs.find(|(one, next)| one.event >= next.event);

        require(
            other.is_none(),
            "numbers follow the order of commits",
            || format!("{other:?}"),
        )?;
    }

    Ok(())
}

/// A delivery keeps its number: the attempt log has no other.
pub fn attempts_have_the_number_of_their_delivery(world: &World) -> Check {
    let state = world.store.state();
    let numbers: BTreeMap<Uuid, Option<i64>> = state
        .created
        .iter()
        .map(|one| (one.delivery, one.sequence))
        .collect();
    let other = state
        .log
        .iter()
        .find(|line| numbers.get(&line.delivery) != Some(&line.sequence));

    require(other.is_none(), "a delivery keeps its number", || {
        format!("{other:?}")
    })
}
