//! The numbers of webhooks' last deliveries. Every transaction that makes deliveries locks the
//! numbers of their webhooks until its commit, before it locks deliveries.

use deadpool_postgres::GenericClient;
use uuid::Uuid;

use super::statement::{Statements, arrays};
use super::{Result, Store};
use crate::domain::sequence::Sequences;
use crate::sql::store as sql;

/// Locks the numbers of these webhooks, and adds them to `sequences`. Inserts those that do not
/// exist.
pub async fn start(
    transaction: &impl GenericClient,
    webhooks: &[Uuid],
    sequences: &mut Sequences,
) -> Result<()> {
    let mut webhooks = webhooks.to_vec();
    webhooks.sort_unstable();

    for (webhook, last) in transaction
        .fetch_all::<(Uuid, i64)>(sql::webhook_sequence::START, &[&webhooks])
        .await?
    {
        sequences.insert(webhook, last);
    }

    Ok(())
}

/// Stores numbers that have changed, given in order of webhook.
pub async fn store(transaction: &impl GenericClient, changed: &[(Uuid, i64)]) -> Result<()> {
    if !changed.is_empty() {
        let arrays = arrays!(changed, |(webhook, last)| (*webhook, *last));
        transaction
            .run(sql::webhook_sequence::STORE, &arrays.params())
            .await?;
    }

    Ok(())
}

/// Removes the numbers of webhooks that no longer exist.
pub async fn remove_orphans(store: &Store) -> Result<()> {
    store
        .run(sql::webhook_sequence::REMOVE_ORPHANS, &[])
        .await?;
    Ok(())
}
