//! Changes of which users have which add-ons.

use std::collections::{HashMap, HashSet};

/// The changes of a batch. The last change of each pair of user and add-on counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddonChanges {
    /// Whether all users lose all add-ons, before the other changes.
    cleared: bool,
    /// Users who lose all add-ons, before the changes in `granted`.
    emptied: HashSet<String>,
    /// Pairs of user and add-on: true if granted, false if revoked.
    granted: HashMap<(String, String), bool>,
}

impl AddonChanges {
    pub fn grant(&mut self, user: &str, addon: &str) {
        self.granted.insert((user.to_owned(), addon.to_owned()), true);
    }

    pub fn revoke(&mut self, user: &str, addon: &str) {
        self.granted.insert((user.to_owned(), addon.to_owned()), false);
    }

    pub fn revoke_all(&mut self, user: &str) {
        self.granted.retain(|(owner, _), _| owner != user);
        self.emptied.insert(user.to_owned());
    }

    pub fn clear(&mut self) {
        self.emptied.clear();
        self.granted.clear();
        self.cleared = true;
    }

    pub const fn is_cleared(&self) -> bool {
        self.cleared
    }

    pub fn emptied(&self) -> impl Iterator<Item = &str> {
        self.emptied.iter().map(String::as_str)
    }

    /// Returns the pairs of user and add-on that are granted, or those that are revoked.
    pub fn pairs(&self, granted: bool) -> Vec<(&str, &str)> {
        let pairs = self.granted.iter().filter(|(_, now)| **now == granted);
        pairs.map(|((user, addon), _)| (user.as_str(), addon.as_str())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_counts() {
        let mut changes = AddonChanges::default();
        changes.grant("1", "stream_radar");
        changes.clear();
        changes.grant("2", "stream_radar");
        changes.revoke("2", "stream_radar");
        changes.grant("3", "preflight_qc");
        changes.grant("4", "preflight_qc");
        changes.revoke_all("4");
        assert!(changes.is_cleared() && changes.emptied().eq(["4"]));
        assert_eq!(changes.pairs(true), [("3", "preflight_qc")]);
        assert_eq!(changes.pairs(false), [("2", "stream_radar")]);
    }
}
