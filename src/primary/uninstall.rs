//! Removes what Walhook has created on the primary: all of it for `walhook teardown`, one capture
//! mode's part after a switch.

use postgres_types::Type;
use tokio_postgres::Client;

use super::error::{PrimaryError, Result, refuse};
use super::finding::{Finding, Fix, FixKind};
use super::identity::Remainder;
use super::table_locks::{Attempts, LockMode, busy, change_publication, lock_table, together};
use super::triggers::catalog::{
    TableWithTriggers, TriggerState, tables_with_triggers, trigger_state,
};
use super::triggers::function::function_name;
use super::triggers::script::{ScriptPart, run_with_retries};
use super::{catalog, identity, lineage, print};
use crate::config::Source;
use crate::domain::table::Table;
use crate::failpoint::failpoint;
use crate::postgres::{self, quote_identifier};
use crate::sql::primary as sql;
use crate::store::Store;
use crate::store::migrate::FoundIdentity;

/// Drops the slot, the publication, the triggers and their outbox, restores the replica identities
/// and deletes the checkpoint. With `drop_store`, also drops the store's schema. Returns what it
/// did: nothing if all was removed before.
pub async fn teardown(
    source: &Source,
    url: &str,
    store_url: &str,
    drop_store: bool,
) -> Result<Vec<String>> {
    let client = postgres::connect(url).await?;

    // The store has the earlier replica identities: without it nothing could be restored, so fail
    // before anything is changed.
    let store = Store::open(store_url, 2)?;
    let triggers = trigger_state(&client).await?;

    verify_owner(&client, source, &store, &triggers).await?;
    let mut done = drop_wal_capture(&client, source, &store, Attempts::Many).await?;

    failpoint!("wal_capture_removed_triggers_not_removed")?;

    if let Some(schema) = triggers.schema {
        done.push(drop_triggers(&client, schema).await?);
    }

    failpoint!("primary_restored_checkpoint_not_deleted")?;
    done.extend(teardown_store(source, &store, drop_store).await?);

    Ok(done)
}

/// Deletes the checkpoint and, with `drop_store`, the store's schema. Returns what it did.
pub async fn teardown_store(
    source: &Source,
    store: &Store,
    drop_store: bool,
) -> Result<Option<String>> {
    if store.has_schema().await? {
        store.forget_checkpoint(&source.slot).await?;
    }

    failpoint!("checkpoint_deleted_schema_not_dropped")?;

    if drop_store && store.drop_schema().await? {
        failpoint!("schema_dropped_answer_not_received")?;
        return Ok(Some("store: schema walhook dropped".into()));
    }

    Ok(None)
}

/// Returns the SQL with which the owners of the tables and of the publication remove what is
/// theirs. Changes nothing.
pub async fn owner_statements(source: &Source, url: &str, store_url: &str) -> Result<String> {
    let client = postgres::connect(url).await?;
    let store = Store::open(store_url, 1)?;
    let mut statements = wal_statements(&client, source, &store).await?;
    let triggers = trigger_state(&client).await?;

    if let (false, Some(by)) = (triggers.owned, triggers.owner) {
        let drop = sql::triggers::DROP.trim_end();
        let sql = format!("begin; set local lock_timeout = '500ms'; {drop} commit;");
        statements.push(Fix::new(by, FixKind::Other, sql));
    }

    let found = found_identities(&store).await?;
    let mut unrecorded = identity::unrecorded(&client, source, found.as_deref()).await?;

    for row in client.query_typed(sql::relation::GRANTED, &[]).await? {
        let by: &str = row.get("by");
        let revoke: &str = row.get("sql");
        let is_own: bool = row.get("is_own");
        let statements = match is_own {
            true => &mut statements,
            false => &mut unrecorded,
        };
        statements.push(Fix::new(by, FixKind::Other, revoke));
    }

    let mut text = print::script(&statements);
    if !unrecorded.is_empty() {
        text.push_str("-- If these were not set for another program, remove the dashes:\n");
    }

    for Fix { by, sql, .. } in unrecorded {
        text.push_str(&format!(
            "-- {} -- with the rights of {by}\n",
            sql.trim_end()
        ));
    }

    text.push_str("-- Then `walhook teardown --yes`, as its own role: it removes the rest and deletes the checkpoint.\n");
    Ok(text)
}

/// Returns the statements that remove what capture from the WAL needed, except the slot.
async fn wal_statements(client: &Client, source: &Source, store: &Store) -> Result<Vec<Fix>> {
    let publication = catalog::publication(client, &source.publication).await?;
    let drop = publication
        .map(|publication| Fix::new(publication.owner, FixKind::Other, drop_publication(source)));

    let remainders = remainders(client, source, store).await?.into_iter();
    let restore =
        remainders.map(|remainder| Fix::new(remainder.owner, FixKind::Locks, remainder.statement));

    Ok(drop.into_iter().chain(restore).collect())
}

/// Returns the statements that remove what a switch to triggers has left. Empty until the switch is
/// complete.
pub(super) async fn remains_of_wal_capture(
    client: &Client,
    source: &Source,
    store_url: &str,
) -> Result<Vec<Fix>> {
    let store = Store::open(store_url, 1)?;
    if !store.has_schema().await? {
        return Ok(Vec::new());
    }

    match store.stored_checkpoint(&source.slot).await? {
        Some(stored) if stored.is_outbox() => wal_statements(client, source, &store).await,
        _ => Ok(Vec::new()),
    }
}

fn drop_publication(source: &Source) -> String {
    sql::publication::DROP.replace("{publication}", &quote_identifier(&source.publication))
}

async fn remainders(client: &Client, source: &Source, store: &Store) -> Result<Vec<Remainder>> {
    let found = found_identities(store).await?;
    identity::remainders(client, source, found.as_deref()).await
}

/// Returns the replica identities before setup. None if there is no store, which has them.
async fn found_identities(store: &Store) -> Result<Option<Vec<FoundIdentity>>> {
    Ok(match store.has_schema().await? {
        true => Some(store.found_identities().await?),
        false => None,
    })
}

/// Fails, before anything is removed, with everything that belongs to another role.
async fn verify_owner(
    client: &Client,
    source: &Source,
    store: &Store,
    triggers: &TriggerState,
) -> Result<()> {
    const REMEDY: &str = "its owner must run what `walhook teardown --print` prints";
    let foreign =
        |subject: &str| Finding::fail(subject, "belongs to another role", REMEDY).blocking();
    let mut findings = Vec::new();

    if catalog::publication(client, &source.publication)
        .await?
        .is_some_and(|publication| !publication.owned)
    {
        findings.push(foreign(&format!("publication {}", source.publication)));
    }

    let remainders = remainders(client, source, store).await?;
    findings.extend(
        remainders
            .iter()
            .filter(|remainder| !remainder.owned)
            .map(|remainder| foreign(&remainder.subject)),
    );

    if triggers.schema.is_some() && !triggers.owned {
        findings.push(foreign("schema walhook_capture"));
    }

    refuse(findings)
}

/// Drops the slot and the publication and restores the replica identities. Returns what it did.
pub(crate) async fn drop_wal_capture(
    client: &Client,
    source: &Source,
    store: &Store,
    attempts: Attempts,
) -> Result<Vec<String>> {
    let mut done: Vec<String> = drop_slot(client, source).await?.into_iter().collect();
    failpoint!("slot_dropped_publication_not_dropped")?;

    if catalog::publication(client, &source.publication)
        .await?
        .is_some()
    {
        change_publication(client, &drop_publication(source), &[]).await?;
        done.push(format!("publication {}: dropped", source.publication));
    }

    failpoint!("publication_dropped_identities_not_restored")?;

    for remainder in remainders(client, source, store).await? {
        remainder.remove(client, attempts).await?;
        failpoint!("identity_restored_not_forgotten")?;
        done.push(remainder.done);
    }

    if store.has_schema().await? {
        store.forget_identities().await?;
    }

    Ok(done)
}

/// Judges what capture from the WAL has left on the primary after a switch to triggers, except the
/// slot.
pub async fn inspect_remains(source: &Source, url: &str, store: &Store) -> Result<Vec<Finding>> {
    let client = postgres::connect(url).await?;
    let mut findings = Vec::new();

    if let Some(publication) = catalog::publication(&client, &source.publication).await? {
        let subject = format!("publication {}", source.publication);
        findings.push(Finding::warn(
            subject,
            "exists although triggers capture",
            identity::remedy_of_remaining(publication.owned),
        ));
    }

    let left = remainders(&client, source, store).await?.into_iter();
    findings.extend(left.map(
        |Remainder {
             subject,
             state,
             owned,
             ..
         }| { Finding::warn(subject, state, identity::remedy_of_remaining(owned)) },
    ));

    Ok(findings)
}

/// Drops the slot. Returns what it did. Fails if it is not Walhook's, or in use.
pub(crate) async fn drop_slot(client: &Client, source: &Source) -> Result<Option<String>> {
    let Some(slot) = catalog::slot(client, &source.slot).await? else {
        return Ok(None);
    };

    if let Some(foreign) = slot.foreign(&source.slot) {
        return Err(PrimaryError::Preconditions(vec![foreign]));
    }

    catalog::unused_slot(client, &source.slot).await?;
    client
        .query_typed(sql::slot::DROP, &[(&source.slot, Type::TEXT)])
        .await?;

    Ok(Some(format!("slot {}: dropped", source.slot)))
}

/// Drops the triggers and their outbox: those of the schema with this oid, and not those that
/// another process has created since. Returns what it did.
///
/// Each table's triggers are dropped in their own transaction. A transaction that has written to
/// the outbox holds a lock on the table that it wrote for, so nothing uses the outbox once the last
/// table's triggers are gone.
async fn drop_triggers(client: &Client, schema: u32) -> Result<String> {
    for table in Table::ALL {
        let function = function_name(*table);
        let statement = sql::triggers::FUNCTION_DROP.replace("{function}", &function);
        drop_with_triggers(client, schema, Some(&function), &statement).await?;
        failpoint!("triggers_of_table_dropped_outbox_not_dropped")?;
    }

    drop_with_triggers(client, schema, None, sql::triggers::DROP).await?;
    Ok("schema walhook_capture: dropped, with the triggers".into())
}

/// Runs a statement that drops this function, or all of them, with the triggers that call it.
async fn drop_with_triggers(
    client: &Client,
    schema: u32,
    function: Option<&str>,
    statement: &str,
) -> Result<()> {
    let tables = tables_with_triggers(client, function).await?;
    let owned = tables
        .iter()
        .filter(|table| table.owned)
        .map(TableWithTriggers::quoted);
    let owned: Vec<String> = owned.collect();
    let lock: String = owned
        .iter()
        .map(|table| lock_table(table, LockMode::AccessExclusive))
        .collect();

    // Waits for locks only of the outbox and of tables that belong to other roles.
    let drop = if tables.len() == owned.len() && function.is_some() {
        ScriptPart::Free(statement)
    } else {
        ScriptPart::Locking(statement)
    };

    if run_with_retries(
        client,
        Some(schema),
        &owned,
        &[ScriptPart::Locking(&together(&lock)), drop],
    )
    .await?
    {
        return Ok(());
    }

    let names: Vec<String> = tables.iter().map(TableWithTriggers::quoted).collect();
    Err(busy(client, &names).await)
}

/// Drops the triggers if a switch to the WAL was completed. Returns what it did.
pub(crate) async fn drop_triggers_after_switch(
    client: &Client,
    source: &Source,
    store: &Store,
) -> Result<Option<String>> {
    // Before the checkpoint: a switch is forgotten before setup creates triggers again.
    let schema = trigger_state(client).await?.schema;
    let stored = store.stored_checkpoint(&source.slot).await?;
    let Some(stored) = stored.filter(|stored| !stored.is_outbox() && stored.switch.is_some())
    else {
        return Ok(None);
    };

    // The triggers of a replaced primary are not those that the switch has left.
    let found = catalog::lineage(client).await?;
    lineage::verify_not_replaced(found, stored.checkpoint.lineage)?;

    let done = match schema {
        Some(schema) => Some(drop_triggers(client, schema).await?),
        None => None,
    };

    failpoint!("outbox_dropped_switch_not_forgotten")?;
    store.forget_switch(&source.slot).await?;

    Ok(done)
}
