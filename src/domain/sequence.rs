//! New deliveries, and their numbers within their webhooks.

use std::collections::{BTreeSet, HashMap, HashSet};

use uuid::Uuid;

use super::delivery::NewDelivery;
use super::event::delivery_id;

/// The numbers of webhooks' last deliveries. The transaction that makes deliveries has locked them,
/// so no other transaction uses the same numbers, and a number becomes visible only after those
/// before it.
#[derive(Clone, Debug, Default)]
pub struct Sequences {
    last: HashMap<Uuid, i64>,
    changed: BTreeSet<Uuid>,
    /// The webhooks and order keys of the deliveries that were made.
    keys: HashSet<(Uuid, i64)>,
}

impl Sequences {
    /// Adds a webhook with the number of its last delivery.
    pub fn insert(&mut self, webhook: Uuid, last: i64) {
        self.last.insert(webhook, last);
    }

    /// Returns the number of the webhook's next delivery, from 1. None for a webhook that was not
    /// added: its deliveries have no numbers.
    fn next(&mut self, webhook: Uuid) -> Option<i64> {
        let last = self.last.get_mut(&webhook)?;
        *last += 1;
        self.changed.insert(webhook);
        Some(*last)
    }

    /// Makes the next delivery of a webhook. It is parked if one with the same order key was made
    /// before it.
    pub fn delivery(&mut self, webhook: Uuid, event: Uuid, order_key: Option<i64>) -> NewDelivery {
        NewDelivery {
            id: delivery_id(event, webhook),
            webhook,
            event,
            sequence: self.next(webhook),
            order_key,
            is_parked: order_key.is_some_and(|key| !self.keys.insert((webhook, key))),
            leased: false,
        }
    }

    /// Returns the webhooks whose number has changed, in order of id, with their numbers.
    pub fn changed(&self) -> Vec<(Uuid, i64)> {
        self.changed
            .iter()
            .map(|webhook| (*webhook, self.last[webhook]))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_webhook_is_numbered_without_gaps_and_only_changed_numbers_are_stored() {
        let [first, second, unknown] = [1, 2, 3].map(Uuid::from_u128);
        let mut sequences = Sequences::default();

        sequences.insert(second, 0);
        sequences.insert(first, 41);
        assert_eq!(sequences.changed(), []);
        assert_eq!(
            [first, first, unknown].map(|webhook| sequences.next(webhook)),
            [Some(42), Some(43), None]
        );
        assert_eq!(sequences.changed(), [(first, 43)]);
    }
}
