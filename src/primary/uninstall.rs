//! Takes what a mode of capture needs off the primary: for teardown, and once a switch to the other mode is made.

use postgres_types::Type;
use tokio_postgres::Client;

use super::triggers::function::function_name;
use super::triggers::script::{Part, patiently};
use super::{catalog, identity};
use crate::capture::CaptureError;
use crate::config::Source;
use crate::domain::table::Table;
use crate::postgres::quote_identifier;
use crate::store::Store;

const SLOT_DROP: &str = include_str!("../../sql/primary/slot_drop.sql");
const PUBLICATION_DROP: &str = include_str!("../../sql/primary/publication_drop.sql");
const FUNCTION_DROP: &str = include_str!("../../sql/primary/outbox_function_drop.sql");
const OUTBOX_DROP: &str = include_str!("../../sql/primary/outbox_drop.sql");

/// Where a server is behind a pooler, settings must not outlive their transaction.
const BOUNDED: &str = "begin; set local lock_timeout = '5s'; set local statement_timeout = '60s'";

/// The slot, the publication and the replica identities. Says what was done.
pub(crate) async fn log_objects(client: &Client, source: &Source, store: &Store) -> Result<Vec<String>, CaptureError> {
    let mut done = Vec::new();
    drop_slot(client, source, &mut done).await?;
    if catalog::publication(client, &source.publication).await?.is_some() {
        let statement = PUBLICATION_DROP.replace("{publication}", &quote_identifier(&source.publication));
        client.batch_execute(BOUNDED).await?;
        if let Err(error) = client.batch_execute(&statement).await {
            client.batch_execute("rollback").await?;
            return Err(identity::busy(client, error, &[]).await);
        }
        client.batch_execute("commit").await?;
        done.push(format!("publication {}: dropped", source.publication));
    }
    if store.has_schema().await? {
        for found in store.found_identities().await? {
            client.batch_execute(BOUNDED).await?;
            done.extend(end(client, identity::restore(client, &found).await).await?);
            store.forget_identity(found.table_oid).await?;
        }
    }
    done.extend(identity::drop_indexes(client, source).await?);
    Ok(done)
}

/// Ends the transaction as its work ended.
async fn end<T>(client: &Client, result: Result<T, CaptureError>) -> Result<T, CaptureError> {
    client.batch_execute(if result.is_ok() { "commit" } else { "rollback" }).await?;
    result
}

async fn drop_slot(client: &Client, source: &Source, done: &mut Vec<String>) -> Result<(), CaptureError> {
    let Some(slot) = catalog::slot(client, &source.slot).await? else { return Ok(()) };
    if let Some(found) = slot.foreign() {
        return Err(CaptureError::ForeignSlot { slot: source.slot.clone(), found });
    }
    if let Some(pid) = slot.active_pid {
        return Err(CaptureError::SlotInUse { slot: source.slot.clone(), pid });
    }
    client.query_typed(SLOT_DROP, &[(&source.slot, Type::TEXT)]).await?;
    done.push(format!("slot {}: dropped", source.slot));
    Ok(())
}

/// The triggers with all they write to. Says what was done. Table by table, each on its own: who has written to the outbox holds
/// the table that it was written for, so that nobody is left in it when its turn comes.
pub(crate) async fn triggers(client: &Client, source: &Source) -> Result<Option<String>, CaptureError> {
    if !super::triggers::catalog::state(client).await?.installed {
        return Ok(None);
    }
    for table in Table::ALL {
        let statement = FUNCTION_DROP.replace("{function}", &function_name(*table));
        patiently(client, source, &[Part::Locking(&statement)]).await?;
    }
    patiently(client, source, &[Part::Locking(OUTBOX_DROP)]).await?;
    Ok(Some("schema walhook_capture: dropped, with the triggers".into()))
}

/// Drops the triggers that a switch to the log has left, if there was one. Says what was done.
pub(crate) async fn drop_triggers(
    client: &Client,
    source: &Source,
    store: &Store,
) -> Result<Option<String>, CaptureError> {
    let stored = store.stored_checkpoint(&source.slot).await?;
    if !stored.is_some_and(|stored| !stored.checkpoint.progress.is_outbox() && stored.switch.is_some()) {
        return Ok(None);
    }
    let done = triggers(client, source).await?;
    store.forget_switch(&source.slot).await?;
    Ok(done)
}
