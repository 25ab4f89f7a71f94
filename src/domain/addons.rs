//! Changes of which users have which add-ons.

use std::collections::{HashMap, HashSet};

/// The changes of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddonChanges {
    /// Whether all users lose all add-ons, before the other changes.
    cleared: bool,
    /// Users who lose all add-ons, before the changes in `counts`.
    emptied: HashSet<String>,
    /// By how much the number of rows with this user and add-on changes: the platform's table may
    /// have several.
    counts: HashMap<(String, String), i32>,
}

impl AddonChanges {
    pub fn grant(&mut self, user: &str, addon: &str) {
        self.add(user, addon, 1);
    }

    pub fn revoke(&mut self, user: &str, addon: &str) {
        self.add(user, addon, -1);
    }

    fn add(&mut self, user: &str, addon: &str, rows: i32) {
        *self
            .counts
            .entry((user.to_owned(), addon.to_owned()))
            .or_default() += rows;
    }

    pub fn revoke_all(&mut self, user: &str) {
        self.counts.retain(|(owner, _), _| owner != user);
        self.emptied.insert(user.to_owned());
    }

    /// Forgets what changes for a user and an add-on.
    pub fn withdraw(&mut self, user: &str, addon: &str) {
        self.counts.remove(&(user.to_owned(), addon.to_owned()));
    }

    pub fn clear(&mut self) {
        self.emptied.clear();
        self.counts.clear();
        self.cleared = true;
    }

    pub const fn is_cleared(&self) -> bool {
        self.cleared
    }

    pub fn emptied(&self) -> impl Iterator<Item = &str> {
        self.emptied.iter().map(String::as_str)
    }

    /// Returns user, add-on and number of rows that are granted, or of those that are revoked.
    pub fn rows(&self, granted: bool) -> Vec<(&str, &str, i32)> {
        let rows = self
            .counts
            .iter()
            .filter(|(_, count)| **count != 0 && (**count > 0) == granted);
        rows.map(|((user, addon), count)| (user.as_str(), addon.as_str(), count.abs()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_after_a_revocation_of_all_count() {
        let mut changes = AddonChanges::default();
        changes.grant("1", "stream_radar");
        changes.clear();
        changes.grant("2", "stream_radar");
        changes.revoke("2", "stream_radar");
        changes.revoke("2", "stream_radar");
        changes.grant("3", "preflight_qc");
        changes.grant("3", "preflight_qc");
        changes.grant("4", "preflight_qc");
        changes.revoke_all("4");
        changes.grant("5", "preflight_qc");
        changes.revoke("5", "preflight_qc");
        assert!(changes.is_cleared() && changes.emptied().eq(["4"]));
        assert_eq!(changes.rows(true), [("3", "preflight_qc", 2)]);
        assert_eq!(changes.rows(false), [("2", "stream_radar", 1)]);
    }
}
