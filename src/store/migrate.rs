//! Migrates the store's schema, checks whether this build can work on the schema it finds, and keeps
//! what setup has changed on the primary.
//!
//! Replicas of an earlier build run during an upgrade. So a migration never waits long for a lock
//! that they hold, and a build can work on the schema of a later one.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use refinery::{Migration, Runner, Target};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Row};

use super::statement::{FromRow, Statements, column, from_row};
use super::{Result, Store, StoreError};
use crate::failpoint::failpoint;
use crate::postgres;
use crate::sql::store as sql;

mod embedded {
    refinery::embed_migrations!("migrations");
}

static LATER: OnceLock<Vec<Migration>> = OnceLock::new();

/// Adds migrations after those of this build, for tests of upgrades: pairs of a name, without the
/// version, and statements.
#[doc(hidden)]
pub fn add_later(migrations: &[(&str, &str)]) {
    let own = embedded::migrations::runner();
    let newest = own
        .get_migrations()
        .iter()
        .map(Migration::version)
        .max()
        .unwrap_or(0);

    let later = (newest + 1..)
        .zip(migrations)
        .map(|(version, (name, statements))| {
            Migration::unapplied(&format!("V{version}__{name}"), statements)
                .expect("a migration's name")
        });

    LATER.set(later.collect()).expect("it is called once");
}

fn runner() -> Runner {
    let own = embedded::migrations::runner();

    match LATER.get() {
        Some(later) => Runner::new(&[own.get_migrations().as_slice(), later].concat()),
        None => own,
    }
}

/// The advisory lock that serializes migrations, because the runner takes none: "walhook" in ASCII.
const LOCK: i64 = 0x0077_616C_686F_6F6B;
/// How long to wait until another process has migrated. This wait delays nothing else.
const TURN_TIMEOUT: &str = "60s";
/// How long to wait for a table's lock, behind which the statements of replicas queue. It is below
/// Postgres' `deadlock_timeout` of a second, so that a deadlock fails the migration and never a
/// replica's transaction.
const TABLE_TIMEOUT: &str = "500ms";
/// The pause between two tries, so that queued statements run.
const PAUSE: Duration = Duration::from_millis(500);
/// How long to retry a migration that gets no lock.
const MAX_DURATION: Duration = Duration::from_secs(120);

/// The store's schema compared with this build's migrations, whose numbers are the versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    Same {
        found: i32,
    },
    /// A later build has migrated it. Migrations only add, so this build can work on it.
    Newer {
        found: i32,
        known: i32,
    },
    Missing,
    Older {
        found: i32,
        known: i32,
    },
    /// A later build has removed something that this build uses: only builds that know the version
    /// `needs` can work on it.
    TooNew {
        found: i32,
        known: i32,
        needs: i32,
    },
}

/// Why this build cannot work on the store, and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incompatibility {
    pub problem: String,
    pub fix: &'static str,
}

impl fmt::Display for Incompatibility {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.problem, self.fix)
    }
}

impl Schema {
    /// Returns the version of the store's schema; zero if there is none.
    pub const fn version(self) -> i32 {
        match self {
            Schema::Missing => 0,
            Schema::Same { found }
            | Schema::Newer { found, .. }
            | Schema::Older { found, .. }
            | Schema::TooNew { found, .. } => found,
        }
    }

    pub fn incompatibility(self) -> Option<Incompatibility> {
        const SET_UP: &str = "run `walhook setup` first";

        let (problem, fix) = match self {
            Schema::Same { .. } | Schema::Newer { .. } => return None,
            Schema::Missing => ("the store has no schema yet".to_owned(), SET_UP),
            Schema::Older { found, known } => (
                format!(
                    "the store's schema is at version {found}, this build needs version {known}"
                ),
                SET_UP,
            ),
            Schema::TooNew {
                found,
                known,
                needs,
            } => (
                format!(
                    "the store's schema is at version {found}, which builds that know version {needs} or later can work \
                     with; this one knows {known}"
                ),
                "start the newer build again, or restore the store as it was before that build's setup",
            ),
        };

        Some(Incompatibility { problem, fix })
    }

    /// Returns why this build cannot read the events of a log, if it cannot. It reads those of an
    /// older schema: the process that writes the log may be updated later.
    pub fn unreadable(self) -> Option<Incompatibility> {
        let fix = match self {
            Schema::Same { .. } | Schema::Newer { .. } | Schema::Older { .. } => return None,
            Schema::Missing => {
                "run `walhook setup` with the configuration of the process that writes the log, or correct source.log_url"
            }
            Schema::TooNew { .. } => "update this process",
        };

        Some(Incompatibility {
            fix,
            ..self.incompatibility()?
        })
    }

    fn of(applied: &[Migration], own: &[Migration]) -> Schema {
        let newest = |migrations: &[Migration]| migrations.iter().map(Migration::version).max();
        let known = newest(own).unwrap_or(0);
        let Some(found) = newest(applied) else {
            return Schema::Missing;
        };

        let needs = applied
            .iter()
            .filter_map(|migration| needs(migration.name()))
            .max()
            .unwrap_or(0);

        match found.cmp(&known) {
            _ if needs > known => Schema::TooNew {
                found,
                known,
                needs,
            },
            std::cmp::Ordering::Less => Schema::Older { found, known },
            std::cmp::Ordering::Equal => Schema::Same { found },
            std::cmp::Ordering::Greater => Schema::Newer { found, known },
        }
    }
}

/// The version that a build must know to work without what this migration removes. The migration's
/// name contains it: `V40__drop_hours_needs_38`.
fn needs(name: &str) -> Option<i32> {
    name.rsplit_once("_needs_")?.1.parse().ok()
}

/// Compares the store's schema with this build's migrations.
pub async fn schema(url: &str) -> Result<Schema> {
    let mut client = postgres::connect(url).await?;
    client
        .batch_execute("set search_path = walhook, pg_catalog")
        .await?;

    Ok(Schema::of(
        &applied(&mut client).await?,
        runner().get_migrations(),
    ))
}

/// Returns why this build cannot work on the store, if it cannot.
pub async fn incompatibility(url: &str) -> Result<Option<Incompatibility>> {
    Ok(schema(url).await?.incompatibility())
}

/// Migrates the store's schema and returns the versions that were applied: none if a later build
/// has migrated it. Uses its own connection, which must not go through a transaction pooler: the
/// advisory lock would not belong to this session.
pub async fn migrate(url: &str) -> Result<Vec<String>> {
    let mut client = postgres::connect(url).await?;
    accept_encoding(&client).await?;

    let lock = format!("set lock_timeout = '{TURN_TIMEOUT}'; select pg_advisory_lock({LOCK})");
    client.batch_execute(&lock).await?;

    let schema = "create schema if not exists walhook; set search_path = walhook, pg_catalog";
    client
        .batch_execute(&format!("{schema}; set lock_timeout = '{TABLE_TIMEOUT}'"))
        .await?;
    failpoint!("schema_created_tables_not_created")?;

    let applied = applied(&mut client).await?;
    let runner = runner();
    let own = runner.get_migrations();
    match Schema::of(&applied, own) {
        // If this build's migrations are not among the applied ones, the histories differ: the
        // runner returns an error that says how.
        Schema::Newer { found, known }
            if own.iter().all(|migration| applied.contains(migration)) =>
        {
            tracing::info!(
                found,
                known,
                "a later build has migrated the store's schema; nothing to do"
            );
            Ok(Vec::new())
        }
        schema @ Schema::TooNew { .. } => Err(StoreError::Migration(
            schema.incompatibility().expect("it is too new").to_string(),
        )),
        _ => run(own, &applied, &mut client).await,
    }
}

/// What to do about a store with another encoding than UTF-8, which cannot have every text of the
/// platform.
pub const ENCODING_FIX: &str =
    "create another database with `encoding 'UTF8' template template0` and name it in store.url";

async fn accept_encoding(client: &Client) -> Result<()> {
    let encoding: String = client
        .query_one("select current_setting('server_encoding')", &[])
        .await?
        .get(0);
    match encoding.as_str() {
        "UTF8" => Ok(()),
        _ => Err(StoreError::Migration(format!(
            "the database has the encoding {encoding}: {ENCODING_FIX}"
        ))),
    }
}

/// Applies the migrations that are missing, each in its own transaction: if one fails, those before
/// it stay applied.
async fn run(own: &[Migration], applied: &[Migration], client: &mut Client) -> Result<Vec<String>> {
    let missing = own
        .iter()
        .filter(|migration| !applied.contains(migration))
        .map(Migration::version);
    let missing: BTreeSet<i32> = missing.collect();
    let started = Instant::now();

    for version in &missing {
        run_to(Target::Version(*version), own, client, started).await?;
        failpoint!("migration_committed_next_not_started")?;
    }

    // Applies nothing, and fails if the histories differ.
    run_to(Target::Latest, own, client, started).await?;
    failpoint!("migrations_applied_not_reported")?;

    Ok(missing
        .iter()
        .map(|version| format!("V{version}"))
        .collect())
}

/// Applies the migrations up to `target`. Retries one that gets no lock.
async fn run_to(
    target: Target,
    own: &[Migration],
    client: &mut Client,
    started: Instant,
) -> Result<()> {
    let runner = Runner::new(own).set_target(target);
    while let Err(error) = runner.run_async(client).await {
        if !is_lock_timeout(&error) || started.elapsed() > MAX_DURATION {
            return Err(StoreError::Migration(describe(&error)));
        }

        tracing::info!("a migration did not get the lock on its table; retrying");
        tokio::time::sleep(PAUSE).await;
    }

    Ok(())
}

/// Returns the migrations that were applied to the store. Empty before the first.
async fn applied(client: &mut Client) -> Result<Vec<Migration>> {
    let history = client
        .query_one(
            "select to_regclass('walhook.refinery_schema_history') is not null",
            &[],
        )
        .await?;
    if !history.get::<_, bool>(0) {
        return Ok(Vec::new());
    }

    let applied = runner().get_applied_migrations_async(client).await;
    applied.map_err(|error| StoreError::Migration(describe(&error)))
}

fn causes(error: &refinery::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}

fn is_lock_timeout(error: &refinery::Error) -> bool {
    let mut databases =
        causes(error).filter_map(|cause| cause.downcast_ref::<tokio_postgres::Error>());
    databases.any(|error| error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
}

fn describe(error: &refinery::Error) -> String {
    causes(error).fold(error.to_string(), |text, cause| match cause
        .downcast_ref::<tokio_postgres::Error>()
    {
        Some(error) => format!("{text}: {}", postgres::describe(error)),
        None => format!("{text}: {cause}"),
    })
}

/// A table's replica identity before setup changed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundIdentity {
    pub table_oid: u32,
    /// For messages. The oid identifies the table.
    pub table_name: String,
    /// As in `pg_class`: `d`, `n`, `f` or `i`.
    pub identity: String,
    pub index: Option<String>,
}

impl FromRow for FoundIdentity {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(FoundIdentity {
            // An oid, which is read as `u32` itself.
            table_oid: row.try_get("table_oid")?,
            table_name: column(row, "table_name")?,
            identity: column(row, "identity")?,
            index: column(row, "index_name")?,
        })
    }
}

/// The server, database and role of the store.
#[derive(Clone, Debug)]
pub struct Identity {
    pub system_identifier: i64,
    pub database: String,
    pub role: String,
    pub encoding: String,
    pub synchronous_commit: String,
    /// Whether commits can wait for a standby.
    pub synchronous: bool,
    /// When the server was started.
    pub started_at: Timestamp,
    pub now: Timestamp,
}

from_row!(Identity {
    system_identifier,
    database,
    role,
    encoding,
    synchronous_commit,
    synchronous,
    started_at,
    now
});

impl Identity {
    /// Returns whether both are the same database of the same server. A copy has the same id as its
    /// original, and another server.
    pub fn is_same(&self, other: &Identity) -> bool {
        (self.system_identifier, self.started_at, &self.database)
            == (other.system_identifier, other.started_at, &other.database)
    }
}

impl Store {
    pub async fn remember_identity(&self, found: &FoundIdentity) -> Result<()> {
        let FoundIdentity {
            table_oid,
            table_name,
            identity,
            index,
        } = found;

        self.run(
            sql::replica_identity::REMEMBER,
            &[table_oid, table_name, identity, index],
        )
        .await?;
        Ok(())
    }

    pub async fn found_identities(&self) -> Result<Vec<FoundIdentity>> {
        self.fetch_all(sql::replica_identity::LIST, &[]).await
    }

    pub async fn forget_identities(&self) -> Result<()> {
        self.run(sql::replica_identity::FORGET, &[]).await?;
        Ok(())
    }

    pub async fn has_schema(&self) -> Result<bool> {
        self.fetch_one(sql::server::SCHEMA_EXISTS, &[]).await
    }

    /// Drops the schema, also one without tables. Returns false if there is none.
    pub async fn drop_schema(&self) -> Result<bool> {
        let was_created = self.fetch_one(sql::server::SCHEMA_CREATED, &[]).await?;
        self.run(sql::server::DROP_SCHEMA, &[]).await?;

        Ok(was_created)
    }

    pub async fn identity(&self) -> Result<Identity> {
        self.fetch_one(sql::server::IDENTIFY, &[]).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(names: &[&str]) -> Vec<Migration> {
        names
            .iter()
            .map(|name| Migration::unapplied(name, "select 1").expect("a migration's name"))
            .collect()
    }

    #[test]
    fn a_build_works_on_a_newer_schema_until_something_it_uses_is_removed() {
        let own = history(&["V1__store", "V2__hours"]);
        assert_eq!(Schema::of(&[], &own), Schema::Missing);
        assert_eq!(
            Schema::of(&own[..1], &own),
            Schema::Older { found: 1, known: 2 }
        );
        assert_eq!(Schema::of(&own, &own), Schema::Same { found: 2 });

        let mut later = history(&[
            "V1__store",
            "V2__hours",
            "V4__more",
            "V5__drop_hours_needs_2",
        ]);

        assert_eq!(
            Schema::of(&later, &own),
            Schema::Newer { found: 5, known: 2 }
        );
        assert_eq!(Schema::of(&later, &own).incompatibility(), None);
        later.extend(history(&["V6__drop_store_needs_5"]));

        let problem = Schema::of(&later, &own)
            .incompatibility()
            .expect("it is too new")
            .to_string();
        assert!(
            problem.contains("version 6") && problem.contains("knows 2: start the newer build"),
            "{problem}"
        );

        // A log may be older than its reader, whose fix for a newer one is another than a store's.
        assert_eq!(Schema::of(&own[..1], &own).unreadable(), None);
        let unreadable = Schema::of(&later, &own).unreadable();
        assert_eq!(unreadable.expect("too new").fix, "update this process");

        // The name has the word, but no version.
        assert_eq!(needs("what_it_needs_now"), None);
    }
}
