//! The add-ons that users have at the checkpoint.

use deadpool_postgres::GenericClient;

use super::statement::{Statements, arrays};
use super::{Result, Store};
use crate::domain::addons::AddonChanges;

const GRANT: &str = include_str!("../../sql/store/user_addon_grant.sql");
const REVOKE: &str = include_str!("../../sql/store/user_addon_revoke.sql");

impl Store {
    /// Returns user and add-on for each add-on that one of `users` has.
    pub async fn addons(&self, users: &[String]) -> Result<Vec<(String, String)>> {
        self.fetch_all(include_str!("../../sql/store/user_addon_list.sql"), &[&users]).await
    }
}

pub async fn change_addons(transaction: &impl GenericClient, changes: &AddonChanges) -> Result<()> {
    if changes.is_cleared() {
        transaction.run(include_str!("../../sql/store/user_addon_clear.sql"), &[]).await?;
    }
    let emptied: Vec<&str> = changes.emptied().collect();
    if !emptied.is_empty() {
        transaction.run(include_str!("../../sql/store/user_addon_revoke_all.sql"), &[&emptied]).await?;
    }
    for (granted, sql) in [(false, REVOKE), (true, GRANT)] {
        let pairs = changes.pairs(granted);
        if !pairs.is_empty() {
            let pairs = arrays!(pairs, |pair| (pair.0, pair.1));
            transaction.run(sql, &pairs.params()).await?;
        }
    }
    Ok(())
}
