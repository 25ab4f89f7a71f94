//! Prepares capture by triggers, or the switch to it from the WAL.

pub(crate) mod catalog;
pub(crate) mod function;
pub(crate) mod script;

use postgres_types::Type;
use tokio_postgres::Client;
use uuid::Uuid;

use script::Script;

use super::error::{PrimaryError, Result};
use super::inspect::{Conditions, Triggers, inspect};
use super::lease::CaptureLease;
use super::slot;
use super::slot::Seeded;
use super::snapshot::SnapshotSession;
use super::table_locks::Attempts;
use super::uninstall;
use crate::config::Source;
use crate::domain::gap::Gap;
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::position::{Checkpoint, Progress, Through};
use crate::domain::window::{Snapshot, Window};
use crate::failpoint::failpoint;
use crate::postgres;
use crate::sql::primary as sql;
use crate::store::checkpoint::{StoredCheckpoint, insert_first_checkpoint};
use crate::store::{Store, StoreError, migrate};

/// Creates the triggers and stores the position from which the outbox is read. Returns what it did:
/// nothing if all was prepared before.
pub(super) async fn setup(source: &Source, url: &str, store_url: &str) -> Result<Vec<String>> {
    let client = postgres::connect(url).await?;
    let mut found = inspect(&client, source, Conditions::All).await?;

    found.accept()?;
    let mut done = Vec::new();
    let migrated = migrate::migrate(store_url).await?;
    if !migrated.is_empty() {
        done.push(format!(
            "store: schema brought up to date ({})",
            migrated.join(", ")
        ));
    }

    let store = Store::open(store_url, 2)?;
    // Completes an earlier switch to the WAL: its old triggers would be taken for those of this
    // switch, and then dropped.
    if let Some(dropped) = uninstall::drop_triggers_after_switch(&client, source, &store).await? {
        done.push(dropped);
        found = inspect(&client, source, Conditions::All).await?;
    }

    done.extend(found.notes());
    let Some(triggers) = &found.triggers else {
        return Err(PrimaryError::SwitchToTriggers);
    };

    let stored = store.stored_checkpoint(&source.slot).await?;
    found.verify_not_replaced(stored.as_ref())?;

    let reads_outbox = stored.as_ref().is_some_and(StoredCheckpoint::is_outbox);

    let gap = match &stored {
        None if found.slot.is_some() => {
            return Err(PrimaryError::SlotWithoutCheckpoint(source.slot.clone()));
        }
        Some(stored) if reads_outbox && stored.switch.is_some() => {
            return Err(PrimaryError::SwitchToWal);
        }
        Some(_) if reads_outbox && !triggers.is_whole() => {
            // The rows of the old outbox are lost.
            let missing = triggers.state.missing.join(", ");
            Some(Gap::OutboxLost(format!("{missing} is missing")))
        }
        Some(_)
            if reads_outbox && !(triggers.altered.is_empty() && triggers.unguarded.is_empty()) =>
        {
            // They are created and noted again below: a running process may not see it.
            Some(Gap::TriggersLacking(found.trigger_losses().join("; ")))
        }
        _ => None,
    };

    if let Some(gap) = gap {
        store.record_gap(&source.slot, &gap, None).await?;
        done.push(PrimaryError::Gap(gap).to_string());
    }

    let switches = stored.is_some() && !reads_outbox && !triggers.state.is_installed();
    done.extend(triggers.install(&client, source, switches).await?);

    if switches {
        done.push("the WAL is read up to here: set source.capture = \"trigger\" and restart `walhook run`".into());
    }

    if stored.is_none() {
        failpoint!("triggers_created_checkpoint_not_stored")?;
        let seeded = begin(url, source, &store, &client).await?;
        done.push(format!("the outbox is read from here; {seeded}"));
    }

    if reads_outbox {
        done.extend(complete_switch(&client, source, &store).await);
    }

    Ok(done)
}

/// Removes what capture from the WAL has left, which the role of `walhook run` may have no rights
/// to. The triggers work without it.
async fn complete_switch(client: &Client, source: &Source, store: &Store) -> Vec<String> {
    match uninstall::drop_wal_capture(client, source, store, Attempts::Few).await {
        Ok(done) => done,
        Err(error) => vec![format!(
            "note: not all that capture from the WAL has left could be removed: {error}"
        )],
    }
}

impl Triggers {
    fn is_whole(&self) -> bool {
        self.state.is_complete() && self.state.guarded
    }

    /// Creates what is missing or outdated. Returns what it did.
    async fn install(
        &self,
        client: &Client,
        source: &Source,
        switches: bool,
    ) -> Result<Option<String>> {
        let script = Script::new(&self.comparison, self.is_whole(), &self.altered, switches);
        if script.is_empty() {
            return Ok(None);
        }

        script.run(client, source, self.state.schema).await?;
        failpoint!("triggers_committed_answer_not_received")?;

        let functions = self.comparison.outdated.len();
        let triggers = self.comparison.to_create().count();

        Ok(Some(format!(
            "schema walhook_capture: {functions} functions created, {triggers} triggers created"
        )))
    }
}

/// Creates triggers and functions that are missing or belong to another mapping. Returns what it
/// did.
pub(crate) async fn reinstall(client: &Client, source: &Source) -> Result<Vec<String>> {
    let found = inspect(client, source, Conditions::All).await?;
    found.accept()?;
    let Some(triggers) = &found.triggers else {
        return Err(PrimaryError::SwitchToTriggers);
    };

    let installed = triggers.install(client, source, false).await?;
    Ok(found.notes().into_iter().chain(installed).collect())
}

/// The position from which the outbox is read: everything that a snapshot does not see.
pub(crate) struct Beginning {
    pub lineage: Lineage,
    pub window: Window,
    last_row: u64,
    /// The WAL's insert LSN at the snapshot.
    pub inserted: Lsn,
}

impl Beginning {
    /// Starts at the session's snapshot. First flushes the WAL of everything that the snapshot
    /// sees, over `client`.
    pub async fn at(session: &SnapshotSession, client: &Client) -> Result<Beginning> {
        flush(client).await?;
        let row = session
            .client()
            .query_typed_one(sql::snapshot::TAKE, &[])
            .await?;
        let snapshot = Snapshot::from(row.get::<_, &str>("snapshot"));
        let inserted = Lsn(row.get::<_, postgres_types::PgLsn>("inserted").into());
        let lineage = Lineage::of_server(row.get("system_identifier"), row.get("timeline"))
            .ok_or(PrimaryError::Standby)?;

        let highest: i64 = session
            .client()
            .query_typed_one(sql::outbox::HIGHEST, &[])
            .await?
            .get(0);
        let window = Window {
            number: inserted.0,
            from: snapshot.clone(),
            to: snapshot,
        };

        Ok(Beginning {
            lineage,
            window,
            last_row: highest as u64,
            inserted,
        })
    }

    /// Records the position on the primary, as the reader does when it deletes rows. After a
    /// failover this shows that the new primary has everything that the snapshot saw; without it,
    /// that would be a gap. Waits for a synchronous standby.
    ///
    /// Only after the checkpoint is stored: until then, the rows up to this position may have to be
    /// read.
    pub async fn record(&self, client: &Client) -> Result<()> {
        let number = self.window.number as i64;
        let row = self.last_row as i64;
        client
            .execute_typed(
                sql::outbox::BEGIN,
                &[(&number, Type::INT8), (&row, Type::INT8)],
            )
            .await?;

        Ok(())
    }

    pub fn checkpoint(&self) -> Checkpoint {
        let Beginning {
            lineage,
            ref window,
            last_row,
            ..
        } = *self;

        let progress = Progress::in_window(window.clone(), Through::End, last_row);
        Checkpoint { lineage, progress }
    }
}

/// Flushes the WAL of every commit that is visible now. With `synchronous_commit = off`, a commit
/// is visible before it is flushed, and a crash undoes it.
pub(crate) async fn flush(client: &Client) -> Result<()> {
    client.query_typed_one(sql::outbox::FLUSH, &[]).await?;
    Ok(())
}

/// Stores the position from which the outbox is read, and the rows at that snapshot.
async fn begin(url: &str, source: &Source, store: &Store, client: &Client) -> Result<Seeded> {
    let session = SnapshotSession::now(url).await?;
    let beginning = Beginning::at(&session, client).await?;
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await.map_err(StoreError::from)?;

    insert_first_checkpoint(&transaction, &source.slot, &beginning.checkpoint(), None).await?;
    let seeded = slot::seed(&session, source, &transaction).await?;

    transaction.commit().await.map_err(StoreError::from)?;
    failpoint!("outbox_checkpoint_stored_position_not_recorded")?;
    beginning.record(client).await?;

    Ok(seeded)
}

/// Takes the lease on reading the outbox, so that no other process reads it meanwhile.
pub(crate) async fn stop_reading(source: &Source, store: &Store) -> Result<CaptureLease> {
    const ATTEMPTS: u32 = 14;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(500);

    let holder = Uuid::now_v7();

    for _ in 0..ATTEMPTS {
        if let Some(lease) = CaptureLease::take(store, &source.slot, holder).await? {
            return Ok(lease);
        }

        tokio::time::sleep(PAUSE).await;
    }

    Err(PrimaryError::Captured)
}
