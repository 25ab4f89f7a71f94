//! The add-ons that users have at the checkpoint.

use deadpool_postgres::GenericClient;

use super::statement::{Statements, arrays, from_row};
use super::{Result, Store};
use crate::domain::addons::AddonChanges;
use crate::sql::store as sql;

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
        self.fetch_all(sql::user_addon::LIST, &[&users]).await
    }
}

pub async fn change_addons(transaction: &impl GenericClient, changes: &AddonChanges) -> Result<()> {
    if changes.is_cleared() {
        transaction.run(sql::user_addon::CLEAR, &[]).await?;
    }

    let emptied: Vec<&str> = changes.emptied().collect();
    if !emptied.is_empty() {
        transaction
            .run(sql::user_addon::REVOKE_ALL, &[&emptied])
            .await?;
    }

    for (granted, sql) in [
        (false, sql::user_addon::REVOKE),
        (false, sql::user_addon::REDUCE),
        (true, sql::user_addon::GRANT),
    ] {
        let rows = changes.rows(granted);
        if !rows.is_empty() {
            let rows = arrays!(rows, |row| (row.0, row.1, row.2));
            transaction.run(sql, &rows.params()).await?;
        }
    }

    Ok(())
}
