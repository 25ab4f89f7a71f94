//! Tables and journals that can be rolled back.

use std::collections::BTreeMap;
use std::ops::Deref;

/// A table, by primary key.
#[derive(Debug)]
pub struct Table<K, V> {
    rows: BTreeMap<K, V>,
    /// What the current transaction has replaced.
    replaced: Vec<(K, Option<V>)>,
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Table {
            rows: BTreeMap::new(),
            replaced: Vec::new(),
        }
    }
}

impl<K, V> Deref for Table<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.rows
    }
}

impl<K: Clone + Ord, V: Clone> Table<K, V> {
    pub fn put(&mut self, key: K, value: V) {
        let before = self.rows.insert(key.clone(), value);
        self.replaced.push((key, before));
    }

    pub fn remove(&mut self, key: &K) -> Option<V> {
        let before = self.rows.remove(key)?;
        self.replaced.push((key.clone(), Some(before.clone())));
        Some(before)
    }

    /// Changes a row, if it exists.
    pub fn change(&mut self, key: &K, change: impl FnOnce(&mut V)) {
        if let Some(row) = self.rows.get_mut(key) {
            self.replaced.push((key.clone(), Some(row.clone())));
            change(row);
        }
    }

    pub fn end(&mut self, is_committed: bool) {
        for (key, before) in self.replaced.drain(..).rev() {
            match before {
                _ if is_committed => {}
                Some(value) => drop(self.rows.insert(key, value)),
                None => drop(self.rows.remove(&key)),
            }
        }
    }
}

/// Rows that are only appended.
#[derive(Debug)]
pub struct Journal<T> {
    rows: Vec<T>,
    committed: usize,
}

impl<T> Default for Journal<T> {
    fn default() -> Self {
        Journal {
            rows: Vec::new(),
            committed: 0,
        }
    }
}

impl<T> Deref for Journal<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.rows
    }
}

impl<T> Journal<T> {
    pub fn push(&mut self, row: T) {
        self.rows.push(row);
    }

    pub fn end(&mut self, is_committed: bool) {
        if !is_committed {
            self.rows.truncate(self.committed);
        }

        self.committed = self.rows.len();
    }
}
