//! A map whose memory can be bounded: each entry has a weight in bytes, and the least recently used
//! entries are removed first.

use std::hash::Hash;

use lru::LruCache;

pub struct WeightedLru<K: Hash + Eq, V> {
    /// Each value with the weight of its entry.
    entries: LruCache<K, (V, usize)>,
    weight: usize,
}

impl<K: Hash + Eq, V> Default for WeightedLru<K, V> {
    fn default() -> Self {
        WeightedLru {
            entries: LruCache::unbounded(),
            weight: 0,
        }
    }
}

impl<K: Hash + Eq, V> WeightedLru<K, V> {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn get(&mut self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    pub fn put(&mut self, key: K, value: V, weight: usize) {
        self.weight += weight;

        if let Some((_, replaced)) = self.entries.put(key, (value, weight)) {
            self.weight -= replaced;
        }
    }

    /// Changes a value, if it is there. `change` returns the new weight of its entry.
    pub fn change(&mut self, key: &K, change: impl FnOnce(&mut V) -> usize) {
        if let Some((value, weight)) = self.entries.get_mut(key) {
            self.weight -= *weight;
            *weight = change(value);
            self.weight += *weight;
        }
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (value, weight) = self.entries.pop(key)?;
        self.weight -= weight;
        Some(value)
    }

    /// Removes the entries whose keys `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&K) -> bool)
    where
        K: Clone,
    {
        let removed: Vec<K> = self
            .entries
            .iter()
            .map(|(key, _)| key)
            .filter(|key| !keep(key))
            .cloned()
            .collect();
        for key in &removed {
            self.remove(key);
        }
    }

    /// Removes the least recently used entry if the entries weigh more than `limit`.
    pub fn remove_beyond(&mut self, limit: usize) -> Option<(K, V)> {
        if self.weight <= limit {
            return None;
        }

        let (key, (value, weight)) = self.entries.pop_lru()?;
        self.weight -= weight;

        Some((key, value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_least_recently_used_entries_are_removed_first() {
        let mut lru = WeightedLru::default();

        for key in 0..4 {
            lru.put(key, (), 10);
        }

        lru.get(&0);
        lru.change(&1, |()| 5);
        assert_eq!(lru.remove_beyond(35), None);
        assert_eq!(lru.remove_beyond(34), Some((2, ())));
        assert_eq!(lru.remove_beyond(0), Some((3, ())));
        assert_eq!(lru.remove_beyond(0), Some((0, ())));
        assert_eq!(lru.remove_beyond(0), Some((1, ())));
        assert!(lru.is_empty() && lru.remove_beyond(0).is_none());
    }

    proptest! {
        #[test]
        fn the_weight_is_that_of_the_entries(steps in prop::collection::vec((0..4_u8, 0..8_u8, 0..1_000_usize), 0..100)) {
            let mut lru = WeightedLru::default();

            for (step, key, weight) in steps {
                match step {
                    0 => lru.put(key, (), weight),
                    1 => lru.change(&key, |()| weight),
                    2 => drop(lru.remove(&key)),
                    _ => drop(lru.remove_beyond(weight)),
                }

                prop_assert_eq!(lru.weight, lru.entries.iter().map(|(_, (_, weight))| weight).sum::<usize>());
            }
        }
    }
}
