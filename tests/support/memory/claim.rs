//! The dispatcher's statements.

use std::time::Duration;

use uuid::Uuid;
use walhook::domain::delivery::{Delivery, Lease};
use walhook::domain::webhook::SealedTarget;
use walhook::store::deliver::{ClaimRequest, Claimed, DeliveryClass};

use super::{MemoryTransaction, Row, State, later};

fn is_of(class: DeliveryClass, row: &Row) -> bool {
    (row.attempt > 1) == (class == DeliveryClass::Retry)
}

impl MemoryTransaction<'_> {
    /// Does what `Store::claim` does, under this lease.
    pub fn claim(&self, request: &ClaimRequest, lease: Lease, length: Duration) -> Claimed {
        let mut state = self.state();
        let (visited, last, due) = due(&state, request);
        let mut claimed = Claimed {
            visited,
            last_visited: last.filter(|_| visited >= request.max_webhooks),
            ..Claimed::default()
        };

        let now = state.now;
        let mut bytes = 0;

        for id in due {
            state.grant(id, Some(lease.token), later(now, length));
            let Some(held) = state.held(id, lease) else {
                claimed.orphans.push(id);
                continue;
            };

            bytes += held.bytes();

            if bytes > request.max_bytes && !claimed.deliveries.is_empty() {
                state.grant(id, None, now);
                claimed.refused += 1;
            } else {
                claimed.deliveries.push(held);
            }
        }

        claimed
    }

    /// Does what `Store::release` does.
    pub fn release(&self, deliveries: &[Delivery]) {
        let mut state = self.state();
        let now = state.now;

        for Delivery { id, lease, .. } in deliveries {
            if state
                .deliveries
                .get(id)
                .is_some_and(|row| row.lease == Some(lease.token))
            {
                state.grant(*id, None, now);
            }
        }
    }

    /// Does what `Store::remove_orphans` does.
    pub fn remove_orphans(&self, deliveries: &[Uuid]) {
        let mut state = self.state();
        let is_orphan = |(id, row): &(&Uuid, &Row)| {
            deliveries.contains(id) && !state.events.contains_key(&row.event)
        };

        let orphans: Vec<Uuid> = state
            .deliveries
            .iter()
            .filter(is_orphan)
            .map(|(id, _)| *id)
            .collect();

        let removed: Vec<Row> = orphans
            .iter()
            .filter_map(|id| state.remove_delivery(*id))
            .collect();
        let keys = removed
            .iter()
            .filter_map(|row| Some((row.webhook, row.order_key?)))
            .collect();
        state.promote(&keys, None);
    }

    /// The webhooks that `Store::find_cancellable` finds, if it visits all.
    pub fn cancellable(&self) -> Vec<Uuid> {
        let state = self.state();
        state
            .by_webhook()
            .into_keys()
            .filter(|webhook| !state.is_active(*webhook))
            .collect()
    }

    /// Does what `Store::cancel_pending` does, with chunks of this size.
    pub fn cancel_pending(&self, webhook: Uuid, chunk: usize) -> usize {
        let mut state = self.state();
        if state.is_active(webhook) {
            0
        } else {
            state.cancel(webhook, chunk)
        }
    }

    /// Does what `Store::promote_stranded` does, for all keys. Returns how many deliveries were
    /// made due.
    pub fn promote_stranded(&self) -> usize {
        let mut state = self.state();
        let parked = |state: &State| {
            state
                .deliveries
                .values()
                .filter(|row| row.due_at.is_none())
                .count()
        };

        let active = state
            .deliveries
            .values()
            .filter(|row| state.is_active(row.webhook));
        let keys = active
            .filter_map(|row| Some((row.webhook, row.order_key?)))
            .collect();
        let before = parked(&state);

        state.promote(&keys, None);
        before - parked(&state)
    }

    /// Does what `Store::targets` does.
    pub fn targets(&self, webhooks: &[Uuid]) -> Vec<SealedTarget> {
        let state = self.state();
        webhooks
            .iter()
            .filter_map(|id| Some(state.webhooks.get(id)?.target.clone()))
            .collect()
    }
}

/// Returns how many webhooks a claim visits, the last of them, and the deliveries to lease.
fn due(state: &State, request: &ClaimRequest) -> (usize, Option<Uuid>, Vec<Uuid>) {
    let mut visited = 0;
    let mut last = None;
    let mut found = Vec::new();

    for (webhook, rows) in state.by_webhook() {
        let of_class: Vec<&(Uuid, &Row)> = rows
            .iter()
            .filter(|(_, row)| is_of(request.class, row))
            .collect();
        let is_in_range =
            webhook > request.start_after && request.end_with.is_none_or(|end| webhook <= end);
        if of_class.is_empty() || !is_in_range || visited >= request.max_webhooks {
            continue;
        }

        (visited, last) = (visited + 1, Some(webhook));
        let limit = request
            .limits
            .iter()
            .find(|(id, _)| *id == webhook)
            .map_or(request.per_webhook, |(_, limit)| *limit);
        let mut due: Vec<_> = of_class
            .iter()
            .filter_map(|(id, row)| Some((row.due_at.filter(|due_at| *due_at <= state.now)?, *id)))
            .collect();
        due.sort_unstable();
        found.extend(due.into_iter().take(limit).map(|(_, id)| id));
    }

    found.truncate(request.max_rows);
    (visited, last, found)
}
