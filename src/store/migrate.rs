//! Migrations, one process at a time: the runner itself takes no lock. Builds are exchanged while others work, so that a
//! migration waits for no lock for long, and a build goes on working on the schema of a later one.

use std::error::Error;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use refinery::{Migration, Runner};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::{Result, StoreError};
use crate::postgres;

mod embedded {
    refinery::embed_migrations!("migrations");
}

static LATER: OnceLock<Vec<Migration>> = OnceLock::new();

/// Adds migrations behind this build's own, for tests of upgrades: the names that follow their numbers, and the statements.
#[doc(hidden)]
pub fn add_later(migrations: &[(&str, &str)]) {
    let own = embedded::migrations::runner();
    let newest = own.get_migrations().iter().map(Migration::version).max().unwrap_or(0);
    let later = (newest + 1..).zip(migrations).map(|(version, (name, statements))| {
        Migration::unapplied(&format!("V{version}__{name}"), statements).expect("a migration's name")
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

/// Any number that no other program is likely to use: "walhook" in ASCII.
const LOCK: i64 = 0x0077_616C_686F_6F6B;
/// For another process's migration to end, which hinders nobody.
const TURN_TIMEOUT: &str = "60s";
/// For a table: whoever comes to it meanwhile waits behind us. Below Postgres' `deadlock_timeout` of a second, so that it is
/// the migration that gives way and never a replica at work.
const TABLE_TIMEOUT: &str = "500ms";
/// Between two attempts, for those who waited.
const PAUSE: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(120);

/// How the store's schema stands to the one this build was made for. Versions are migrations' numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    Same,
    /// A later build has been here. Migrations only add, so this one goes on working.
    Newer {
        found: i32,
        known: i32,
    },
    Missing,
    Older {
        found: i32,
        known: i32,
    },
    /// A later build has taken away what this one uses: it must know at least the version `needs`.
    TooNew {
        found: i32,
        known: i32,
        needs: i32,
    },
}

/// Why this build cannot work on the store, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    pub problem: String,
    pub mend: &'static str,
}

impl fmt::Display for Misfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.problem, self.mend)
    }
}

impl Schema {
    pub fn misfit(self) -> Option<Misfit> {
        const SET_UP: &str = "run `walhook setup` first";
        let (problem, mend) = match self {
            Schema::Same | Schema::Newer { .. } => return None,
            Schema::Missing => ("the store has no schema yet".to_owned(), SET_UP),
            Schema::Older { found, known } => {
                (format!("the store's schema is at version {found}, this build wants {known}"), SET_UP)
            }
            Schema::TooNew { found, known, needs } => (
                format!(
                    "the store's schema is at version {found}, which builds that know version {needs} or later can work \
                     with; this one knows {known}"
                ),
                "start the newer build again, or restore the store as it was before that build's setup",
            ),
        };
        Some(Misfit { problem, mend })
    }

    fn of(applied: &[Migration], ours: &[Migration]) -> Schema {
        let newest = |migrations: &[Migration]| migrations.iter().map(Migration::version).max();
        let known = newest(ours).unwrap_or(0);
        let Some(found) = newest(applied) else { return Schema::Missing };
        let needs = applied.iter().filter_map(|migration| needs(migration.name())).max().unwrap_or(0);
        match found.cmp(&known) {
            _ if needs > known => Schema::TooNew { found, known, needs },
            std::cmp::Ordering::Less => Schema::Older { found, known },
            std::cmp::Ordering::Equal => Schema::Same,
            std::cmp::Ordering::Greater => Schema::Newer { found, known },
        }
    }
}

/// A migration that takes something away says in its name which version a build has to know that can do without:
/// `V14__drop_hours_needs_12`.
fn needs(name: &str) -> Option<i32> {
    name.rsplit_once("_needs_")?.1.parse().ok()
}

/// How the store's schema stands to this build.
pub async fn schema(url: &str) -> Result<Schema> {
    let mut client = postgres::connect(url).await?;
    client.batch_execute("set search_path = walhook, pg_catalog").await?;
    Ok(Schema::of(&applied(&mut client).await?, runner().get_migrations()))
}

/// What keeps this build from working on the store.
pub async fn misfit(url: &str) -> Result<Option<Misfit>> {
    Ok(schema(url).await?.misfit())
}

/// Brings the store's schema up to date and returns the versions applied now: none where a later build has been here. Runs on
/// a connection of its own, directly: through a transaction pooler the advisory lock would be nobody's.
pub async fn migrate(url: &str) -> Result<Vec<String>> {
    let mut client = postgres::connect(url).await?;
    let turn = format!("set lock_timeout = '{TURN_TIMEOUT}'; select pg_advisory_lock({LOCK})");
    client.batch_execute(&turn).await?;
    let place = "create schema if not exists walhook; set search_path = walhook, pg_catalog";
    client.batch_execute(&format!("{place}; set lock_timeout = '{TABLE_TIMEOUT}'")).await?;
    let (applied, runner) = (applied(&mut client).await?, runner());
    let ours = runner.get_migrations();
    match Schema::of(&applied, ours) {
        // Where ours are not among them, the histories are different ones: the runner says how.
        Schema::Newer { found, known } if ours.iter().all(|migration| applied.contains(migration)) => {
            tracing::info!(found, known, "the store's schema is a later build's, and left as it is");
            Ok(Vec::new())
        }
        schema @ Schema::TooNew { .. } => Err(StoreError::Migration(schema.misfit().expect("it is one").to_string())),
        _ => run(&runner, &mut client).await,
    }
}

/// Each migration is a transaction of its own: those before one that failed stay.
async fn run(runner: &Runner, client: &mut Client) -> Result<Vec<String>> {
    let begun = Instant::now();
    let mut done = Vec::new();
    loop {
        let result = runner.run_async(client).await;
        let report = result.as_ref().map_or_else(refinery::Error::report, Some);
        let applied = report.into_iter().flat_map(|report| report.applied_migrations());
        done.extend(applied.map(|migration| format!("V{}", migration.version())));
        match result {
            Ok(_) => return Ok(done),
            Err(error) if waited_for_a_table(&error) && begun.elapsed() < PATIENCE => {
                tracing::info!("a migration gave way to work on its table; trying again");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(StoreError::Migration(describe(&error))),
        }
    }
}

/// Nothing where there is no history yet.
async fn applied(client: &mut Client) -> Result<Vec<Migration>> {
    let history = client.query_one("select to_regclass('walhook.refinery_schema_history') is not null", &[]).await?;
    if !history.get::<_, bool>(0) {
        return Ok(Vec::new());
    }
    let applied = runner().get_applied_migrations_async(client).await;
    applied.map_err(|error| StoreError::Migration(describe(&error)))
}

fn causes(error: &refinery::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(error.source(), |cause| (*cause).source())
}

fn waited_for_a_table(error: &refinery::Error) -> bool {
    let mut databases = causes(error).filter_map(|cause| cause.downcast_ref::<tokio_postgres::Error>());
    databases.any(|error| error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
}

fn describe(error: &refinery::Error) -> String {
    causes(error).fold(error.to_string(), |text, cause| match cause.downcast_ref::<tokio_postgres::Error>() {
        Some(error) => format!("{text}: {}", postgres::describe(error)),
        None => format!("{text}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(names: &[&str]) -> Vec<Migration> {
        names.iter().map(|name| Migration::unapplied(name, "select 1").expect("a migration's name")).collect()
    }

    #[test]
    fn a_build_works_on_the_schema_of_a_later_one_until_that_took_away_what_it_uses() {
        let ours = history(&["V1__store", "V2__hours"]);
        assert_eq!(Schema::of(&[], &ours), Schema::Missing);
        assert_eq!(Schema::of(&ours[..1], &ours), Schema::Older { found: 1, known: 2 });
        assert_eq!(Schema::of(&ours, &ours), Schema::Same);
        let mut later = history(&["V1__store", "V2__hours", "V4__more", "V5__drop_hours_needs_2"]);
        assert_eq!(Schema::of(&later, &ours), Schema::Newer { found: 5, known: 2 });
        assert_eq!(Schema::of(&later, &ours).misfit(), None);
        later.extend(history(&["V6__drop_store_needs_5"]));
        let misfit = Schema::of(&later, &ours).misfit().expect("a misfit").to_string();
        assert!(misfit.contains("version 6") && misfit.contains("knows 2: start the newer build"), "{misfit}");
        // A word that only looks so.
        assert_eq!(needs("what_it_needs_now"), None);
    }
}
