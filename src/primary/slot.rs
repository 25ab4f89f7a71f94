//! Creates the slot and stores the rows at its snapshot. This is setup's last step; the slot is
//! dropped again if the step fails.

use std::fmt;
use std::time::Duration;

use futures_util::TryStreamExt;
use pg_walstream::{
    LogicalReplicationStream, ReplicationSlotOptions, ReplicationStreamConfig, RetryConfig,
};
use postgres_types::Type;
use tokio_postgres::Client;

use super::error::{PrimaryError, Result};
use super::snapshot::SnapshotSession;
use super::{catalog, conninfo, mapped};
use crate::config::Source;
use crate::domain::addons::AddonChanges;
use crate::domain::change::canonical_int;
use crate::domain::ledger::{self, LedgerChanges};
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::position::{Checkpoint, Progress, Through};
use crate::domain::publication::PublicationMembers;
use crate::domain::table::Table;
use crate::failpoint::failpoint;
use crate::postgres::{Target, fill};
use crate::sql::primary as sql;
use crate::store::checkpoint::{
    SwitchToWal, end_slot_creation, insert_first_checkpoint, prepare_switch,
    set_acknowledgement_limit,
};
use crate::store::enqueue::seed_distributed;
use crate::store::ledger::{change_ledger, forget_ledger, mark_ledger_complete};
use crate::store::lookup_rows::{
    change_addons, change_lookup_rows, forget_lookup_rows, mark_lookup_table,
};
use crate::store::{Store, StoreError, Transaction};

/// For each transaction that is older than the slot: a new slot waits until it has ended.
const CREATION_TIMEOUT: Duration = Duration::from_secs(60);
/// For all of these transactions together.
const ALL_WAITS: Duration = Duration::from_secs(180);
const SEED_CHUNK: usize = 10_000;
/// How far WAL may at least be acknowledged beyond the checkpoint. An idle server takes days to
/// write this much.
pub(crate) const ACKNOWLEDGEMENT_MARGIN: u64 = 16 << 20;

pub(crate) enum Created {
    /// The first slot: capture starts with it.
    First {
        slot: String,
        begins: Lsn,
        seeded: Seeded,
    },
    /// The slot of a switch from triggers: it is read after the outbox.
    Switch { slot: String, begins: Lsn },
}

/// The numbers of rows that were read at the snapshot from which capture starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seeded {
    distributed: usize,
    rows: usize,
}

impl fmt::Display for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} releases were distributed before, {} rows are in the ledger",
            self.distributed, self.rows
        )
    }
}

/// A new slot, and the session that holds its snapshot until it runs another command.
pub(crate) struct Opened {
    walsender: LogicalReplicationStream,
    pub lineage: Lineage,
    /// The LSN at which the slot starts.
    pub begins: Lsn,
    snapshot: String,
    /// What the publication streamed before the slot was created.
    members: PublicationMembers,
}

impl Opened {
    pub async fn snapshot(&self, url: &str) -> Result<SnapshotSession> {
        SnapshotSession::import(url, &self.snapshot).await
    }
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Created::First {
                slot,
                begins,
                seeded,
            } => write!(f, "slot {slot}: created at {begins}; {seeded}"),
            Created::Switch { slot, begins } => write!(
                f,
                "slot {slot}: created at {begins}; the outbox is read up to there: set source.capture = \"wal\" and start `walhook run`"
            ),
        }
    }
}

/// Opens a replication connection for creating the slot.
pub(crate) async fn connect(
    source: &Source,
    url: &str,
    failover: bool,
) -> Result<LogicalReplicationStream> {
    let options = ReplicationSlotOptions {
        snapshot: Some("export".into()),
        failover,
        ..Default::default()
    };

    let config = ReplicationStreamConfig::builder(&source.slot, &source.publication)
        .with_slot_options(options)
        .with_retry_config(RetryConfig {
            max_attempts: 1,
            ..RetryConfig::default()
        });

    let bound = format!("{}s", CREATION_TIMEOUT.as_secs());
    let conninfo = conninfo::replication(&Target::parse(url)?, &[("lock_timeout", &bound)])?;
    Ok(LogicalReplicationStream::new(&conninfo, config).await?)
}

/// Drops the slot of an interrupted setup. The store has recorded that setup was creating it and
/// has no checkpoint for it, so nothing can have been acknowledged. Any other slot without a
/// checkpoint may be in use.
pub(crate) async fn drop_unfinished(
    client: &Client,
    source: &Source,
    store: &Store,
) -> Result<String> {
    if !store.is_creating_slot(&source.slot).await? {
        return Err(PrimaryError::SlotWithoutCheckpoint(source.slot.clone()));
    }

    catalog::unused_slot(client, &source.slot).await?;
    client.execute(sql::slot::DROP, &[&source.slot]).await?;

    Ok(format!(
        "slot {}: dropped, because an earlier setup did not finish",
        source.slot
    ))
}

/// Creates the slot and stores the first checkpoint. Drops the slot again if that fails.
pub(crate) async fn create(
    walsender: LogicalReplicationStream,
    client: &Client,
    source: &Source,
    url: &str,
    store: &Store,
) -> Result<Created> {
    store.begin_slot(&source.slot).await?;
    failpoint!("slot_noted_not_created")?;

    let opened = open(walsender, client, source).await?;
    let stored = begin(&opened, client, source, url, store).await;

    // The snapshot is valid until this connection runs another command or is closed.
    drop(opened.walsender);

    match stored {
        Ok((created, Ok(()))) => Ok(created),
        // The commit may have succeeded: then dropping the slot would cause a gap. If it has not,
        // the next setup drops the slot.
        Ok((_, Err(error))) => Err(PrimaryError::SetupUnknown(error)),
        Err(error) => Err(undo(client, source, error).await),
    }
}

/// Creates the slot. Its snapshot can be imported until the connection is closed.
pub(crate) async fn open(
    mut walsender: LogicalReplicationStream,
    client: &Client,
    source: &Source,
) -> Result<Opened> {
    // Before the slot exists: a later change of the publication differs.
    let members = catalog::publication_members(client, source).await?;
    let created = tokio::time::timeout(ALL_WAITS, walsender.ensure_replication_slot()).await;
    let limit = match created {
        Ok(Ok(())) => None,
        Ok(Err(error)) if error.to_string().contains("[55P03]") => Some(CREATION_TIMEOUT),
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => Some(ALL_WAITS),
    };

    if let Some(limit) = limit {
        let holder = catalog::oldest_transaction(client).await?;
        let holder = holder
            .map(|holder| format!(", the oldest is of {holder}"))
            .unwrap_or_default();
        return Err(PrimaryError::SlotCreation {
            slot: source.slot.clone(),
            limit,
            holder,
        });
    }

    // No snapshot means that another process has created the slot in the meantime.
    let Some(snapshot) = walsender.exported_snapshot_name().map(str::to_owned) else {
        return Err(PrimaryError::SlotWithoutCheckpoint(source.slot.clone()));
    };

    let identity = walsender.server_identity();
    let lineage = Lineage {
        system_identifier: identity.system_id(),
        timeline: identity.timeline(),
    };

    match start_lsn(client, source).await {
        Ok(begins) => Ok(Opened {
            walsender,
            lineage,
            begins,
            snapshot,
            members,
        }),
        Err(error) => Err(undo(client, source, error).await),
    }
}

async fn start_lsn(client: &Client, source: &Source) -> Result<Lsn> {
    let slot = catalog::slot(client, &source.slot).await?;
    slot.and_then(|slot| slot.confirmed()).ok_or_else(|| {
        PrimaryError::Protocol(format!(
            "slot {} has no confirmed_flush_lsn right after its creation",
            source.slot
        ))
    })
}

/// Drops a slot whose checkpoint could not be stored: it would be useless and retain WAL. Returns
/// the error to report.
pub(crate) async fn undo(client: &Client, source: &Source, error: PrimaryError) -> PrimaryError {
    match client.execute(sql::slot::DROP, &[&source.slot]).await {
        Ok(_) => error,
        Err(cleanup) => PrimaryError::LeftBehind {
            slot: source.slot.clone(),
            source: Box::new(error),
            cleanup: Box::new(cleanup.into()),
        },
    }
}

/// Stores the first checkpoint in one transaction with the distributed releases, the looked-up rows
/// and the states of all watched rows at the slot's snapshot. In a switch from triggers, stores
/// only the position of the switch. Also returns the result of the commit.
async fn begin(
    opened: &Opened,
    client: &Client,
    source: &Source,
    url: &str,
    store: &Store,
) -> Result<(Created, Result<(), StoreError>)> {
    let snapshot = opened.snapshot(url).await?;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await.map_err(StoreError::from)?;
    let slot = source.slot.clone();
    let begins = opened.begins;

    end_slot_creation(&transaction, &slot).await?;
    let row = snapshot
        .client()
        .query_typed_one(sql::snapshot::TAKE, &[])
        .await?;

    // Commits and flushes the WAL after the snapshot: a crash cannot make the server assign a
    // transaction id again that the snapshot counts as ended.
    client
        .query_typed(sql::slot::EMIT_HEARTBEAT, &[(&"switch", Type::TEXT)])
        .await?;
    let switch = SwitchToWal {
        snapshot: row.get::<_, &str>("snapshot").into(),
        begins,
    };

    if prepare_switch(&transaction, &slot, &switch).await? {
        set_acknowledgement_limit(
            &transaction,
            &slot,
            Lsn(begins.0.saturating_add(ACKNOWLEDGEMENT_MARGIN)),
        )
        .await?;

        failpoint!("slot_created_switch_not_committed")?;
        let commit = async {
            transaction.commit().await?;
            Ok(failpoint!("switch_committed_answer_not_received")?)
        };

        let committed = commit.await;
        return Ok((Created::Switch { slot, begins }, committed));
    }

    store_beginning(&transaction, source, opened).await?;
    let seeded = seed(&snapshot, source, &transaction).await?;

    failpoint!("slot_created_checkpoint_not_committed")?;
    let commit = async {
        transaction.commit().await?;
        Ok(failpoint!("checkpoint_committed_answer_not_received")?)
    };

    let committed = commit.await;
    Ok((
        Created::First {
            slot,
            begins,
            seeded,
        },
        committed,
    ))
}

/// Stores the distributed releases, the looked-up rows and the states of all watched rows at the
/// snapshot.
pub(crate) async fn seed(
    snapshot: &SnapshotSession,
    source: &Source,
    transaction: &Transaction<'_>,
) -> Result<Seeded> {
    let distributed = seed_distributed_releases(snapshot, source, transaction).await?;
    seed_lookups(snapshot, source, transaction).await?;
    let rows = seed_ledger(snapshot, source, transaction).await?;
    Ok(Seeded { distributed, rows })
}

/// Stores the first checkpoint, and how far WAL without events may be acknowledged.
pub(crate) async fn store_beginning(
    transaction: &Transaction<'_>,
    source: &Source,
    opened: &Opened,
) -> Result<()> {
    let Opened {
        lineage,
        begins,
        ref members,
        ..
    } = *opened;

    // The next commit record may start at the slot's LSN, and the slot streams it. It does not
    // count as stored: ordinals start at one.
    let progress = Progress::Wal {
        commit: begins,
        through: Through::Ordinal(0),
        resume: begins,
    };

    insert_first_checkpoint(
        transaction,
        &source.slot,
        &Checkpoint { lineage, progress },
        Some(members),
    )
    .await?;

    let limit = Lsn(begins.0.saturating_add(ACKNOWLEDGEMENT_MARGIN));
    Ok(set_acknowledgement_limit(transaction, &source.slot, limit).await?)
}

async fn seed_distributed_releases(
    snapshot: &SnapshotSession,
    source: &Source,
    transaction: &Transaction<'_>,
) -> Result<usize> {
    const STATUS: &str = "delivery_status";

    let mappings = &source.tables;
    let query = fill(
        sql::snapshot::DELIVERY_STATUSES,
        &[
            (
                "columns",
                &*mapped::as_text(mappings, Table::Release, &["id", STATUS]),
            ),
            ("table", &mapped::table_name(mappings, Table::Release)),
        ],
    );

    let rows = snapshot
        .client()
        .query_typed_raw(&query, std::iter::empty::<(&str, Type)>())
        .await?;
    let mut chunks = std::pin::pin!(rows.try_chunks(SEED_CHUNK));
    let mut distributed = 0;

    while let Some(rows) = chunks.try_next().await.map_err(|error| error.1)? {
        let mut ids = Vec::new();

        for row in rows {
            let (id, status): (Option<&str>, Option<&str>) = (row.try_get(0)?, row.try_get(1)?);
            let status = mappings.datum(Table::Release, STATUS, status);
            let is_distributed = status.as_str() == Some("distributed");
            ids.extend(id.filter(|_| is_distributed).and_then(canonical_int));
        }

        seed_distributed(transaction, &ids).await?;
        distributed += ids.len();
    }

    Ok(distributed)
}

/// Stores the states of all watched rows, to which later changes are compared.
async fn seed_ledger(
    snapshot: &SnapshotSession,
    source: &Source,
    transaction: &Transaction<'_>,
) -> Result<usize> {
    forget_ledger(transaction).await?;

    if !source.ledger {
        return Ok(0);
    }

    let mut seeded = 0;

    for table in ledger::tables().filter(|table| source.follows(*table)) {
        let mut rows = snapshot.watched_rows(source, table).await?;

        loop {
            let part = rows.next().await?;
            if part.is_empty() {
                break;
            }

            seeded += part.len();
            let mut changes = LedgerChanges::default();
            part.into_iter()
                .for_each(|entry| changes.put(table, entry.id, entry.state));
            change_ledger(transaction, &changes).await?;
        }

        rows.close().await?;
    }

    mark_ledger_complete(transaction).await?;
    Ok(seeded)
}

/// Stores the rows that events of other rows need, unless they or their values come from the
/// platform's own SQL: then they are looked up on the primary each time.
pub(crate) async fn seed_lookups(
    snapshot: &SnapshotSession,
    source: &Source,
    transaction: &Transaction<'_>,
) -> Result<()> {
    forget_lookup_rows(transaction).await?;
    let seeded = Table::ALL
        .iter()
        .copied()
        .filter(|table| source.copies_lookups_of(*table));
    for table in seeded {
        match table {
            Table::UserAddon => seed_addons(snapshot, source, transaction).await?,
            _ => seed_lookup_rows(snapshot, source, transaction, table).await?,
        }

        mark_lookup_table(transaction, table, &source.tables.lookup_mapping(table)).await?;
    }

    Ok(())
}

async fn seed_lookup_rows(
    snapshot: &SnapshotSession,
    source: &Source,
    transaction: &Transaction<'_>,
    table: Table,
) -> Result<()> {
    let mut rows = snapshot.looked_up_rows(source, table).await?;

    loop {
        let part = rows.next().await?;
        if part.is_empty() {
            break;
        }

        let mut changes = LedgerChanges::default();

        for row in part {
            changes.put(table, row.id, row.state);
        }

        change_lookup_rows(transaction, &changes).await?;
    }

    rows.close().await
}

async fn seed_addons(
    snapshot: &SnapshotSession,
    source: &Source,
    transaction: &Transaction<'_>,
) -> Result<()> {
    const TABLE: Table = Table::UserAddon;
    const ADDON: &str = "addon";

    let mappings = &source.tables;
    let mut none = AddonChanges::default();

    none.clear();
    change_addons(transaction, &none).await?;

    let columns = mapped::as_text(mappings, TABLE, &["user_id", ADDON]);
    let query = fill(
        sql::snapshot::USER_ADDONS,
        &[
            ("columns", &columns),
            ("table", &mapped::table_name(mappings, TABLE)),
            ("condition", &mapped::condition_on_this(mappings, TABLE)),
        ],
    );
    let rows = snapshot
        .client()
        .query_typed_raw(&query, std::iter::empty::<(&str, Type)>())
        .await?;
    let mut chunks = std::pin::pin!(rows.try_chunks(SEED_CHUNK));
    while let Some(rows) = chunks.try_next().await.map_err(|error| error.1)? {
        let mut found = AddonChanges::default();

        for row in rows {
            let (user, addon): (Option<&str>, Option<&str>) = (row.try_get(0)?, row.try_get(1)?);
            let addon = mappings.datum(TABLE, ADDON, addon);
            if let Some((user, addon)) = user.zip(addon.as_str()) {
                found.grant(user, addon);
            }
        }

        change_addons(transaction, &found).await?;
    }

    Ok(())
}
