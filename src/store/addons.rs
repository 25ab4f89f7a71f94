//! Which add-ons users have at the checkpoint.

use std::collections::{HashMap, HashSet};

use deadpool_postgres::GenericClient;

use super::{Result, Store};

const LIST: &str = include_str!("../../sql/store/user_addon_list.sql");
const GRANT: &str = include_str!("../../sql/store/user_addon_grant.sql");
const REVOKE: &str = include_str!("../../sql/store/user_addon_revoke.sql");
const REVOKE_ALL: &str = include_str!("../../sql/store/user_addon_revoke_all.sql");
const CLEAR: &str = include_str!("../../sql/store/user_addon_clear.sql");

/// What a stretch of the stream changes of them. The last word on each pair of user and add-on counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddonChanges {
    cleared: bool,
    /// Users who lose all that they had before `granted`.
    emptied: HashSet<String>,
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

    fn pairs(&self, granted: bool) -> (Vec<&str>, Vec<&str>) {
        let pairs = self.granted.iter().filter(|(_, now)| **now == granted);
        pairs.map(|((user, addon), _)| (user.as_str(), addon.as_str())).unzip()
    }
}

impl Store {
    /// The add-ons of those of `users` who have any.
    pub async fn addons(&self, users: &[String]) -> Result<Vec<(String, String)>> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(LIST).await?;
        let rows = connection.query(&statement, &[&users]).await?;
        Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
    }
}

pub async fn change_addons(transaction: &impl GenericClient, changes: &AddonChanges) -> Result<()> {
    if changes.cleared {
        transaction.execute(CLEAR, &[]).await?;
    }
    if !changes.emptied.is_empty() {
        let users: Vec<&str> = changes.emptied.iter().map(String::as_str).collect();
        transaction.execute(REVOKE_ALL, &[&users]).await?;
    }
    for (granted, statement) in [(false, REVOKE), (true, GRANT)] {
        let (users, addons) = changes.pairs(granted);
        if !users.is_empty() {
            let statement = transaction.prepare_cached(statement).await?;
            transaction.execute(&statement, &[&users, &addons]).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_counts() {
        let mut changes = AddonChanges::default();
        changes.grant("1", "stream_radar");
        changes.clear();
        changes.grant("2", "stream_radar");
        changes.revoke("2", "stream_radar");
        changes.grant("3", "preflight_qc");
        changes.grant("4", "preflight_qc");
        changes.revoke_all("4");
        assert!(changes.cleared && changes.emptied.contains("4"));
        assert_eq!(changes.pairs(true), (vec!["3"], vec!["preflight_qc"]));
        assert_eq!(changes.pairs(false), (vec!["2"], vec!["stream_radar"]));
    }
}
