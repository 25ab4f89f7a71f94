//! The add-ons that users have at the checkpoint.

use deadpool_postgres::GenericClient;

use super::statement::{Statements, arrays, from_row};
use super::{Result, Store};
use crate::domain::addons::AddonChanges;

const GRANT: &str = include_str!("../../sql/store/user_addon_grant.sql");
const REVOKE: &str = include_str!("../../sql/store/user_addon_revoke.sql");
const REDUCE: &str = include_str!("../../sql/store/user_addon_reduce.sql");

/// An add-on of a user.
pub struct UserAddon {
    pub user: String,
    pub addon: String,
    /// The number of rows of the platform's table that say so.
    pub copies: i32,
}

from_row!(UserAddon { user = "user_id", addon, copies });

impl Store {
    /// Returns each add-on that one of `users` has.
    pub async fn addons(&self, users: &[String]) -> Result<Vec<UserAddon>> {
        self.fetch_all(
            include_str!("../../sql/store/user_addon_list.sql"),
            &[&users],
        )
        .await
    }
}

pub async fn change_addons(transaction: &impl GenericClient, changes: &AddonChanges) -> Result<()> {
    if changes.is_cleared() {
        transaction
            .run(include_str!("../../sql/store/user_addon_clear.sql"), &[])
            .await?;
    }

    let emptied: Vec<&str> = changes.emptied().collect();
    if !emptied.is_empty() {
        transaction
            .run(
                include_str!("../../sql/store/user_addon_revoke_all.sql"),
                &[&emptied],
            )
            .await?;
    }

    for (granted, sql) in [(false, REVOKE), (false, REDUCE), (true, GRANT)] {
        let rows = changes.rows(granted);
        if !rows.is_empty() {
            let rows = arrays!(rows, |row| (row.0, row.1, row.2));
            transaction.run(sql, &rows.params()).await?;
        }
    }

    Ok(())
}
