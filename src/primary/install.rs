//! Prepares the store and the primary for capture: inspects everything first, then changes what is
//! missing in a safe order.

use postgres_types::Type;
use tokio_postgres::Client;

use super::catalog::{Relation, SlotState};
use super::error::{PrimaryError, Result};
use super::identity::{self, Goal};
use super::inspect::{Conditions, Inspection, Streamed, inspect};
use super::table_locks::change_publication;
use super::{publication, slot, triggers, uninstall};
use crate::config::{CaptureMode, Source};
use crate::domain::gap::Gap;
use crate::domain::position::Checkpoint;
use crate::domain::table::Table;
use crate::failpoint::failpoint;
use crate::postgres;
use crate::sql::primary as sql;
use crate::store::checkpoint::StoredCheckpoint;
use crate::store::migrate::FoundIdentity;
use crate::store::{Store, migrate};

/// Prepares the store and the primary. Returns what it did: nothing if all was prepared before.
pub async fn setup(source: &Source, url: &str, store_url: &str) -> Result<Vec<String>> {
    match source.capture {
        CaptureMode::Wal => wal(source, url, store_url).await,
        CaptureMode::Trigger => triggers::setup(source, url, store_url).await,
        CaptureMode::Log => Err(PrimaryError::LogIsRead),
    }
}

async fn wal(source: &Source, url: &str, store_url: &str) -> Result<Vec<String>> {
    let client = postgres::connect(url).await?;
    let mut found = inspect(&client, source, Conditions::All).await?;

    found.accept()?;
    let failover = found.can_fail_over(source);

    // Connects as a walsender before anything is changed, in case the server refuses that.
    let mut walsender = if found.slot.is_some() {
        None
    } else {
        Some(slot::connect(source, url, failover).await?)
    };

    let migrated = migrate::migrate(store_url).await?;
    failpoint!("store_migrated_primary_not_prepared")?;

    let store = Store::open(store_url, 2)?;
    let stored = store.stored_checkpoint(&source.slot).await?;

    found.verify_not_replaced(stored.as_ref())?;
    let mut done = Vec::new();

    if !stored.as_ref().is_some_and(StoredCheckpoint::is_outbox) {
        done.extend(uninstall::drop_triggers_after_switch(&client, source, &store).await?);

        if triggers::catalog::trigger_state(&client)
            .await?
            .is_installed()
        {
            return Err(PrimaryError::SwitchToTriggers);
        }

        let is_readable = matches!(
            SlotState::of(found.slot.as_ref(), &source.slot),
            SlotState::Readable(_)
        );
        if let (false, Some(stored)) = (is_readable, &stored) {
            return Err(lost_slot(source, &store, &stored.checkpoint, found.slot.is_some()).await);
        }
    }

    if !migrated.is_empty() {
        done.push(format!(
            "store: schema brought up to date ({})",
            migrated.join(", ")
        ));
    }

    // Without a prepared switch, the slot is of an earlier setup that did not finish, or is left
    // over from capture from the WAL.
    let switches = stored.as_ref().is_some_and(|stored| {
        stored.is_outbox() && (found.slot.is_none() || stored.switch.is_none())
    });

    let mut lease = None;

    if switches {
        // Taken before anything is changed: a process that starts to read the outbox removes slot,
        // publication and identities.
        lease = Some(triggers::stop_reading(source, &store).await?);
        failpoint!("outbox_reading_stopped_tables_not_published")?;
        done.extend(uninstall::drop_slot(&client, source).await?);
        found = inspect(&client, source, Conditions::All).await?;
    } else if found.slot.is_some() && stored.is_none() {
        done.push(slot::drop_unfinished(&client, source, &store).await?);
    }

    if walsender.is_none() && (switches || stored.is_none()) {
        walsender = Some(slot::connect(source, url, failover).await?);
    }

    done.extend(prepare(&client, source, &store, &found).await?);

    if let Some(walsender) = walsender {
        failpoint!("tables_published_slot_not_noted")?;
        done.push(
            slot::create(walsender, &client, source, url, &store)
                .await?
                .to_string(),
        );
    }

    if let Some(lease) = lease {
        lease.release().await;
    }

    Ok(done)
}

/// Sets the replica identities, then creates or completes the publication: a published table
/// without a replica identity rejects the application's updates. Returns what it did.
pub(crate) async fn prepare(
    client: &Client,
    source: &Source,
    store: &Store,
    found: &Inspection,
) -> Result<Vec<String>> {
    let mut done = found.notes();
    let unmet = unmet(source, found);
    let unmet: Vec<(Table, &Relation, Goal)> = unmet
        .into_iter()
        // Others are sufficient, or setup would have refused.
        .filter(|(_, relation)| relation.owned)
        .map(|(table, relation)| (table, relation, identity::goal(source, table, relation).0))
        .collect();

    done.extend(set_identities(client, source, store, &unmet).await?);
    failpoint!("identities_set_tables_not_published")?;
    done.extend(publish(client, source, found).await?);

    Ok(done)
}

/// Records the gap of a slot that is missing, or that the server has invalidated.
async fn lost_slot(
    source: &Source,
    store: &Store,
    checkpoint: &Checkpoint,
    exists: bool,
) -> PrimaryError {
    let Some(at) = checkpoint.progress.resume() else {
        return PrimaryError::OutboxIsRead;
    };

    let slot = source.slot.clone();
    let gap = if exists {
        Gap::SlotInvalidated { slot, at }
    } else {
        Gap::SlotMissing { slot, at }
    };

    match store.record_gap(&source.slot, &gap, Some(at)).await {
        Ok(_) => PrimaryError::Gap(gap),
        Err(error) => error.into(),
    }
}

/// Returns the tables and partitions that need another replica identity.
fn unmet<'a>(source: &Source, found: &'a Inspection) -> Vec<(Table, &'a Relation)> {
    let all = found.tables.iter().flat_map(|mapped| {
        mapped
            .relations
            .iter()
            .map(|relation| (mapped.table, relation))
    });

    all.filter(|(table, relation)| !identity::is_met(source, *table, relation))
        .collect()
}

/// Verifies that the WAL has what events need.
///
/// What the platform's DDL has left without a sufficient replica identity gets one first, if no
/// change can have been lost: partitions that nobody has written to yet, and tables whose updates
/// fail.
pub(crate) async fn prepared_for_streaming(
    client: &Client,
    source: &Source,
    store: &Store,
) -> Result<Streamed> {
    let found = inspect(client, source, Conditions::Wal).await?;
    let streamed = found.streamed()?;
    if streamed.missing.is_empty() {
        return Ok(streamed);
    }

    let lacking: Vec<(Table, &Relation)> = unmet(source, &found)
        .into_iter()
        .filter(|(table, relation)| {
            relation.rejection().is_some()
                || !relation.identifies(&identity::wanted(source, *table))
        })
        .collect();

    let mut prepared = Vec::new();

    for (table, relation) in lacking {
        let is_possible = relation.owned && identity::refusal(source, table, relation).is_none();
        let is_unchanged = relation.rejection().is_some() || relation.has_no_identity();
        if is_possible && (is_unchanged || is_unwritten(client, relation).await?) {
            prepared.push((table, relation, urgent_goal(source, table, relation)));
        }
    }

    for line in set_identities(client, source, store, &prepared).await? {
        tracing::info!("{line}");
    }

    // Another task may have prepared the others in the meantime.
    inspect(client, source, Conditions::Wal).await?.streamed()
}

/// Returns the replica identity with which the platform's updates succeed soonest. An index takes
/// long to build: setup does that later.
fn urgent_goal(source: &Source, table: Table, relation: &Relation) -> Goal {
    match relation.has_no_identity() && relation.full_obstacle().is_none() {
        true => Goal::Full,
        false => identity::goal(source, table, relation).0,
    }
}

/// Returns whether a table has never had a row.
async fn is_unwritten(client: &Client, relation: &Relation) -> Result<bool> {
    let size = client
        .query_typed_one(sql::relation::SIZE, &[(&relation.oid, Type::OID)])
        .await?;
    Ok(relation.has_partitions || size.get::<_, Option<i64>>("size") == Some(0))
}

async fn set_identities(
    client: &Client,
    source: &Source,
    store: &Store,
    relations: &[(Table, &Relation, Goal)],
) -> Result<Vec<String>> {
    let mut done = Vec::new();

    for (table, relation, goal) in relations.iter().copied() {
        let earlier = FoundIdentity {
            table_oid: relation.oid,
            table_name: relation.qualified(),
            identity: relation.identity.clone(),
            index: relation
                .identity_index
                .clone()
                .filter(|_| relation.identity == "i"),
        };

        store.remember_identity(&earlier).await?;
        failpoint!("identity_remembered_not_set")?;
        identity::set(client, source, table, relation, goal).await?;

        let (_, reason) = identity::goal(source, table, relation);
        let what = match goal {
            Goal::Full => "full".to_owned(),
            Goal::Index => format!("index over {}", identity::wanted(source, table).join(", ")),
        };

        let reason = reason
            .map(|reason| format!(", since {reason}"))
            .unwrap_or_default();
        done.push(format!(
            "table {}: replica identity {what}{reason}",
            relation.qualified()
        ));
    }

    Ok(done)
}

async fn publish(client: &Client, source: &Source, found: &Inspection) -> Result<Vec<String>> {
    let mut done = Vec::new();

    // What setup needs has been judged before: only the table with the addresses for e-mail may be
    // left to its owner.
    if !publication::may_change(found) {
        return Ok(done);
    }

    for change in publication::changes(source, found) {
        change_publication(client, &change.sql, &change.tables).await?;
        done.push(change.done);
    }

    Ok(done)
}
