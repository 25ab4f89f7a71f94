//! How many new webhooks of each owner were slow, whether they still exist or not.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use lru::LruCache;
use uuid::Uuid;

use crate::domain::event::UserId;

/// Owners that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// The owners of new webhooks: those of which nothing is known before their first request ends.
#[derive(Debug)]
pub struct Owners {
    /// The owners of the new webhooks that have a request in flight.
    of_new: HashMap<Uuid, UserId>,
    slow: LruCache<UserId, usize>,
}

impl Default for Owners {
    fn default() -> Self {
        Owners {
            of_new: HashMap::new(),
            slow: LruCache::new(REMEMBERED),
        }
    }
}

impl Owners {
    /// Notes that a new webhook gets its first request. Returns how many new webhooks of its owner
    /// were slow.
    pub fn start(&mut self, webhook: Uuid, owner: &UserId) -> usize {
        self.of_new.insert(webhook, owner.clone());
        self.slow.get(owner).copied().unwrap_or_default()
    }

    /// Notes that a webhook is not new any more.
    pub fn settle(&mut self, webhook: Uuid, is_slow: bool) {
        if let Some(owner) = self.of_new.remove(&webhook)
            && is_slow
        {
            *self.slow.get_or_insert_mut(owner, || 0) += 1;
        }
    }

    /// Forgets a webhook of which nothing became known.
    pub fn forget(&mut self, webhook: Uuid) {
        self.of_new.remove(&webhook);
    }
}
