//! The slot, and in the store what its snapshot shows: the last step, undone if it does not come to its end.

use std::time::Duration;

use futures_util::TryStreamExt;
use pg_walstream::{LogicalReplicationStream, ReplicationSlotOptions, ReplicationStreamConfig, RetryConfig};
use tokio_postgres::Client;

use super::{CaptureError, Source, Store, postgres, primary};
use crate::capture::conninfo;
use crate::domain::lsn::{Checkpoint, Lineage, Lsn, Position};
use crate::domain::table::Table;
use crate::postgres::{quote_identifier, quote_qualified};
use crate::store::addons::{AddonChanges, change_addons};
use crate::store::capture::{end_slot_creation, insert_first_checkpoint, seed_distributed};
use crate::store::{StoreError, Transaction};

const DISTRIBUTED_RELEASES: &str = include_str!("../../../sql/primary/distributed_releases.sql");
const USER_ADDONS: &str = include_str!("../../../sql/primary/user_addons.sql");
const SLOT_DROP: &str = include_str!("../../../sql/primary/slot_drop.sql");

/// A new slot waits for every transaction that is older than it.
const CREATION_TIMEOUT: Duration = Duration::from_secs(60);
/// The server's own bound is for each of those transactions; this one is for all.
const ALL_WAITS: Duration = Duration::from_secs(180);
const SEED_CHUNK: usize = 10_000;

pub(super) struct Created {
    pub begins: Lsn,
    pub distributed: usize,
}

/// A connection that can create the slot.
pub(super) async fn connect(
    source: &Source,
    url: &str,
    failover: bool,
) -> Result<LogicalReplicationStream, CaptureError> {
    let options = ReplicationSlotOptions { snapshot: Some("export".into()), failover, ..Default::default() };
    let config = ReplicationStreamConfig::builder(&source.slot, &source.publication)
        .with_slot_options(options)
        .with_retry_config(RetryConfig { max_attempts: 1, ..RetryConfig::default() });
    let bound = format!("{}s", CREATION_TIMEOUT.as_secs());
    let conninfo = conninfo::replication(url, &[("lock_timeout", &bound)])?;
    Ok(LogicalReplicationStream::new(&conninfo, config).await?)
}

/// Drops a slot of ours that a setup which was broken off has left: the store knows that it was being created and never got
/// its beginning, so nobody can have acknowledged anything. Any other slot without a checkpoint may be somebody's.
pub(super) async fn drop_unfinished(client: &Client, source: &Source, store: &Store) -> Result<String, CaptureError> {
    if !store.is_creating_slot(&source.slot).await? {
        return Err(CaptureError::SlotWithoutCheckpoint(source.slot.clone()));
    }
    if let Some(pid) = primary::slot(client, &source.slot).await?.and_then(|slot| slot.active_pid) {
        return Err(CaptureError::SlotInUse { slot: source.slot.clone(), pid });
    }
    client.execute(SLOT_DROP, &[&source.slot]).await?;
    Ok(format!("slot {}: dropped, since an earlier setup did not come to its end", source.slot))
}

pub(super) async fn create(
    mut walsender: LogicalReplicationStream,
    client: &Client,
    source: &Source,
    url: &str,
    store: &Store,
) -> Result<Created, CaptureError> {
    store.begin_slot(&source.slot).await?;
    let created = tokio::time::timeout(ALL_WAITS, walsender.ensure_replication_slot()).await;
    let limit = match created {
        Ok(Ok(())) => None,
        Ok(Err(error)) if error.to_string().contains("[55P03]") => Some(CREATION_TIMEOUT),
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => Some(ALL_WAITS),
    };
    if let Some(limit) = limit {
        let holder = primary::oldest_transaction(client).await?;
        let holder = holder.map(|holder| format!(", the oldest is of {holder}")).unwrap_or_default();
        return Err(CaptureError::SlotCreation { slot: source.slot.clone(), limit, holder });
    }
    // Nothing exported means that the slot was there: somebody else made it just now.
    let Some(snapshot) = walsender.exported_snapshot_name().map(str::to_owned) else {
        return Err(CaptureError::SlotWithoutCheckpoint(source.slot.clone()));
    };
    let identity = walsender.server_identity();
    let lineage = Lineage { system_identifier: identity.system_id(), timeline: identity.timeline() };
    let begun = begin(client, source, url, store, lineage, &snapshot).await;
    // The snapshot lives as long as this connection does nothing else.
    drop(walsender);
    match begun {
        Ok(created) => Ok(created),
        Err(error) => Err(undo(client, source, error).await),
    }
}

/// A slot whose beginning is not in the store would be of no use, and would keep the log from being recycled.
async fn undo(client: &Client, source: &Source, error: CaptureError) -> CaptureError {
    match client.execute(SLOT_DROP, &[&source.slot]).await {
        Ok(_) => error,
        Err(cleanup) => CaptureError::LeftBehind {
            slot: source.slot.clone(),
            source: Box::new(error),
            cleanup: Box::new(cleanup.into()),
        },
    }
}

/// Stores where the slot begins, with the releases that were distributed and the add-ons that users had by then: all or
/// nothing.
async fn begin(
    client: &Client,
    source: &Source,
    url: &str,
    store: &Store,
    lineage: Lineage,
    snapshot: &str,
) -> Result<Created, CaptureError> {
    let slot = primary::slot(client, &source.slot).await?;
    let begins = slot.and_then(|slot| slot.confirmed).ok_or_else(|| {
        CaptureError::Protocol(format!("slot {} does not say where it begins right after its creation", source.slot))
    })?;
    let reader = postgres::connect(url).await?;
    // The name is the server's own, of hexadecimal digits and dashes.
    let import = format!(
        "begin isolation level repeatable read read only; set transaction snapshot '{}'; set local statement_timeout = 0",
        snapshot.replace('\'', "''")
    );
    reader.batch_execute(&import).await?;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await.map_err(StoreError::from)?;
    // The next transaction's commit may begin at the very byte at which the slot does: the slot streams it, so it must not
    // count as stored. Ordinals begin at one.
    let first = Checkpoint { lineage, position: Position { commit: begins, ordinal: 0 }, resume: begins };
    insert_first_checkpoint(&transaction, &source.slot, &first).await?;
    end_slot_creation(&transaction, &source.slot).await?;
    let meanings = source.tables.values_meaning(Table::Release, "delivery_status", "distributed");
    let query = rendered(DISTRIBUTED_RELEASES, source, Table::Release, &["id", "delivery_status"]);
    let rows = reader.query_raw(&query, [&meanings]).await?;
    let mut chunks = std::pin::pin!(rows.try_chunks(SEED_CHUNK));
    let mut distributed = 0;
    while let Some(rows) = chunks.try_next().await.map_err(|error| error.1)? {
        let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
        seed_distributed(&transaction, &ids).await?;
        distributed += ids.len();
    }
    seed_addons(&reader, source, &transaction).await?;
    transaction.commit().await.map_err(StoreError::from)?;
    Ok(Created { begins, distributed })
}

/// What add-ons users have as the slot begins. Those that the platform's own SQL finds are not in the stream: they are asked
/// for each time.
async fn seed_addons(reader: &Client, source: &Source, transaction: &Transaction<'_>) -> Result<(), CaptureError> {
    const ADDON: &str = "addon";
    if source.lookups.contains_key(Table::UserAddon.name()) {
        return Ok(());
    }
    let query = rendered(USER_ADDONS, source, Table::UserAddon, &["user_id", ADDON]);
    let rows = reader.query_raw(&query, std::iter::empty::<&str>()).await?;
    let mut chunks = std::pin::pin!(rows.try_chunks(SEED_CHUNK));
    while let Some(rows) = chunks.try_next().await.map_err(|error| error.1)? {
        let mut found = AddonChanges::default();
        for row in rows {
            let (user, addon): (&str, &str) = (row.try_get(0)?, row.try_get(1)?);
            found.grant(user, source.tables.value(Table::UserAddon, ADDON, addon).unwrap_or(addon));
        }
        change_addons(transaction, &found).await?;
    }
    Ok(())
}

/// A statement's template with the platform's names.
fn rendered(template: &str, source: &Source, table: Table, columns: &[&str]) -> String {
    let (schema, name) = source.tables.qualified_name(table);
    let statement = template.replace("{table}", &quote_qualified(&schema, &name));
    columns.iter().fold(statement, |statement, column| {
        statement.replace(&format!("{{{column}}}"), &quote_identifier(source.tables.column(table, column)))
    })
}
