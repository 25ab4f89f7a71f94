//! Prepares capture by triggers, or the switch to it.

pub(crate) mod catalog;
pub(crate) mod function;
pub(crate) mod script;

use tokio_postgres::Client;
use uuid::Uuid;

use catalog::{Comparison, State, Watched};
use script::Script;

use super::catalog::{MINIMUM_VERSION, Server};
use super::lease::Lease;
use super::slot::Seeded;
use super::snapshot::Snapshot as Moment;
use super::{print, slot};
use crate::capture::CaptureError;
use crate::capture::error::Gap;
use crate::capture::outbox::page::flush;
use crate::config::Source;
use crate::domain::lsn::{Lineage, Lsn};
use crate::domain::position::{Checkpoint, Progress, Through};
use crate::domain::table::Table;
use crate::domain::window::{Snapshot, Window};
use crate::health::Health;
use crate::postgres;
use crate::postgres::{quote_identifier, quote_qualified};
use crate::store::capture::insert_first_checkpoint;
use crate::store::{Store, StoreError, migrate};

const HIGHEST: &str = include_str!("../../sql/primary/outbox_highest.sql");
pub(crate) const SNAPSHOT: &str = include_str!("../../sql/primary/snapshot.sql");

/// Puts the triggers on the tables and stores where reading their outbox begins. Run again, it finds nothing to do.
pub(crate) async fn setup(source: &Source, url: &str, store_url: &str) -> Result<Vec<String>, CaptureError> {
    let client = postgres::connect(url).await?;
    let found = examine(&client, source).await?;
    let mut done = Vec::new();
    let migrated = migrate::migrate(store_url).await?;
    if !migrated.is_empty() {
        done.push(format!("store: schema brought up to date ({})", migrated.join(", ")));
    }
    done.extend(found.notes.iter().cloned());
    let store = Store::open(store_url, 2)?;
    let stored = store.stored_checkpoint(&source.slot).await?;
    let reads_outbox = stored.as_ref().is_some_and(|stored| stored.checkpoint.progress.is_outbox());
    match &stored {
        None if super::catalog::slot(&client, &source.slot).await?.is_some() => {
            return Err(CaptureError::SlotWithoutCheckpoint(source.slot.clone()));
        }
        Some(stored) if reads_outbox && stored.switch.is_some() => return Err(CaptureError::SwitchToLog),
        Some(_) if reads_outbox && !found.is_whole() => {
            // What was in it is lost; what comes from now on is not.
            let missing = found.state.missing.join(", ");
            let gap = Gap::OutboxLost(format!("{missing} is missing"));
            let gap = crate::repair::gaps::record(source, &store, &Health::default(), gap, None).await;
            done.push(gap.to_string());
        }
        _ => {}
    }
    let switches = stored.is_some() && !reads_outbox && !found.state.installed;
    done.extend(found.install(&client, source, switches).await?);
    if switches {
        done.push("the log is read up to here: set source.capture = \"trigger\" and restart `walhook run`".into());
    }
    if stored.is_none() {
        let seeded = begin(url, source, &store, &client).await?;
        done.push(format!("the outbox is read from here; {seeded}"));
    }
    Ok(done)
}

struct Found {
    state: State,
    comparison: Comparison,
    notes: Vec<String>,
}

impl Found {
    fn is_whole(&self) -> bool {
        self.state.installed && self.state.missing.is_empty() && self.state.guarded
    }

    /// Makes what is missing, and says what that was.
    async fn install(
        &self,
        client: &Client,
        source: &Source,
        hands_over: bool,
    ) -> Result<Option<String>, CaptureError> {
        let script = Script::new(&self.comparison, self.is_whole().then_some(&self.state), hands_over);
        if script.is_empty() {
            return Ok(None);
        }
        script::run(client, source, &script).await?;
        let (functions, triggers) = (self.comparison.outdated.len(), self.comparison.lacking.len());
        let paired = if self.state.paired { "" } else { ", rows that move between partitions are paired" };
        Ok(Some(format!(
            "schema walhook_capture: {functions} functions made, {triggers} triggers put on the tables{paired}"
        )))
    }
}

/// Puts back what of the triggers is missing or of another mapping. Says what was done.
pub(crate) async fn mend(client: &Client, source: &Source) -> Result<Vec<String>, CaptureError> {
    let found = examine(client, source).await?;
    let installed = found.install(client, source, false).await?;
    Ok(found.notes.into_iter().chain(installed).collect())
}

/// Looks at everything, and refuses before anything is changed.
async fn examine(client: &Client, source: &Source) -> Result<Found, CaptureError> {
    let server = super::catalog::server(client).await?;
    let state = catalog::state(client).await?;
    let watched = catalog::watched(client, source).await?;
    let comparison = catalog::compare(client, &watched).await?;
    let mut problems = server_problems(&server, &state);
    let mut notes = Vec::new();
    for table in &watched {
        match (&table.function, table.relations.is_empty()) {
            (Err(missing), true) if !table.table.is_captured() && table.table != Table::UserAddon => {
                notes.push(format!("note: {missing}; without it what depends on it is not looked up"));
            }
            (Err(problem), _) => problems.push(problem.clone()),
            (Ok(_), _) => problems.extend(table_problems(source, table, &server)),
        }
    }
    for trigger in comparison.lacking.iter().filter(|trigger| !trigger.relation.may_trigger) {
        let name = trigger.relation.quoted();
        let problem =
            format!("no trigger may be put on {name}: `grant trigger on {name} to \"{}\"` as its owner", server.role);
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    let mut others: Vec<String> = comparison
        .lacking
        .iter()
        .chain(&comparison.ordinary)
        .filter(|trigger| !trigger.relation.owned)
        .map(|trigger| trigger.relation.qualified())
        .collect();
    others.dedup();
    if !others.is_empty() && !comparison.lacking.is_empty() {
        notes.push(format!(
            "note: {} are another role's: where a session sets session_replication_role = replica, their triggers do not fire; \
             their owner can `alter table … enable always trigger`",
            others.join(", ")
        ));
    }
    match problems.is_empty() {
        true => Ok(Found { state, comparison, notes }),
        false => Err(CaptureError::Preconditions(problems)),
    }
}

fn server_problems(server: &Server, state: &State) -> Vec<String> {
    let mut problems = Vec::new();
    if server.version < MINIMUM_VERSION {
        problems.push(format!("the primary is PostgreSQL {}: it must be 14 or later", server.version / 10_000));
    }
    if server.in_recovery {
        problems.push("source.url points to a standby: set it to the primary".into());
    }
    if !state.installed && !server.may_create {
        let (role, database) = (&server.role, &server.database);
        problems.push(format!(
            "the role {role} may not create a schema: `grant create on database \"{database}\" to \"{role}\"`, or let a DBA run \
             what `walhook setup --print` shows"
        ));
    }
    if state.installed && !state.usable {
        problems.push(
            "our role may not read or clear walhook_capture.outbox: run `walhook setup` as the role that made it"
                .into(),
        );
    }
    problems
}

/// What was there before the triggers is read once.
fn table_problems(source: &Source, watched: &Watched, server: &Server) -> Vec<String> {
    let columns: &[&str] = match watched.table {
        Table::Release => &["id", "delivery_status"],
        Table::UserAddon => &["user_id", "addon"],
        _ => &[],
    };
    let Some(root) = watched.relations.first() else { return Vec::new() };
    let mut problems = Vec::new();
    let theirs = |column: &&str| source.tables.column(watched.table, column).to_owned();
    let name = root.qualified();
    if columns.iter().map(theirs).any(|column| !root.readable.contains(&column)) {
        problems.push(format!("table {name} cannot be read: `grant select on {name} to \"{}\"`", server.role));
    }
    if !columns.is_empty() && root.row_security {
        problems.push(format!(
            "row-level security hides rows of {name} from our role: give it `bypassrls` or a policy that shows all"
        ));
    }
    problems
}

/// Where reading the outbox begins: the first window is what comes after a moment.
pub(crate) struct Beginning {
    pub lineage: Lineage,
    pub window: Window,
    last_row: u64,
    /// Where the log was then.
    pub inserted: Lsn,
}

impl Beginning {
    /// Reads the moment's snapshot, after everything that it sees is flushed through `client`.
    pub async fn at(moment: &Moment, client: &Client) -> Result<Beginning, CaptureError> {
        flush(client).await?;
        let row = moment.client().query_typed_one(SNAPSHOT, &[]).await?;
        let snapshot = Snapshot::from(row.get::<_, &str>("snapshot"));
        let inserted = Lsn(row.get::<_, postgres_types::PgLsn>("inserted").into());
        let timeline = u32::from_str_radix(row.get("timeline"), 16)
            .map_err(|_| CaptureError::Protocol("a timeline that is no number".into()))?;
        let lineage = Lineage { system_identifier: row.get::<_, i64>("system_identifier") as u64, timeline };
        let highest: i64 = moment.client().query_typed_one(HIGHEST, &[]).await?.get(0);
        let window = Window { number: inserted.0, from: snapshot.clone(), to: snapshot };
        Ok(Beginning { lineage, window, last_row: highest as u64, inserted })
    }

    pub fn checkpoint(&self) -> Checkpoint {
        let Beginning { lineage, ref window, last_row, .. } = *self;
        let progress = Progress::Outbox { window: window.clone(), through: Through::End, last_row };
        Checkpoint { lineage, progress }
    }
}

/// Stores where reading begins, with what is true at that moment.
async fn begin(url: &str, source: &Source, store: &Store, client: &Client) -> Result<Seeded, CaptureError> {
    let moment = Moment::now(url).await?;
    let first = Beginning::at(&moment, client).await?.checkpoint();
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await.map_err(StoreError::from)?;
    insert_first_checkpoint(&transaction, &source.slot, &first).await?;
    let seeded = slot::seed(&moment, source, &transaction).await?;
    transaction.commit().await.map_err(StoreError::from)?;
    Ok(seeded)
}

/// Keeps every other process from reading the outbox while the slot is made that the log is read from afterwards.
pub(crate) async fn stop_reading(source: &Source, store: &Store) -> Result<Lease, CaptureError> {
    const ATTEMPTS: u32 = 14;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
    let holder = Uuid::now_v7();
    for _ in 0..ATTEMPTS {
        if let Some(lease) = Lease::take(store, &source.slot, holder).await? {
            return Ok(lease);
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(CaptureError::Captured)
}

/// All that setup would do on a primary where nothing has been done, for whoever may do it.
pub async fn trigger_statements(source: &Source, url: &str) -> Result<String, CaptureError> {
    let client = postgres::connect(url).await?;
    let watched = catalog::watched(&client, source).await?;
    let problems: Vec<String> = watched.iter().filter_map(|table| table.function.clone().err()).collect();
    if !problems.is_empty() {
        return Err(CaptureError::Preconditions(problems));
    }
    let server = super::catalog::server(&client).await?;
    let role = quote_identifier(&server.role);
    let tables: Vec<String> = watched
        .iter()
        .flat_map(|table| &table.relations)
        .map(|relation| quote_qualified(&relation.schema, &relation.name))
        .collect();
    let (schema, name) = source.tables.qualified_name(Table::AppUser);
    let mail = match source.follows(Table::AppUser) {
        true => format!("grant select on {} to {role}; -- for e-mail\n", quote_qualified(&schema, &name)),
        false => String::new(),
    };
    let script = Script::new(&Comparison::of_nothing(&watched), None, false);
    Ok(format!(
        "-- Our role makes and owns all of it; it needs no more than this.\n\
         grant create on database {} to {role};\n\
         {}grant select, trigger on {} to {role};\n{mail}\n\
         set role {role};\n\n{}\n\
         -- Locks the tables against writing for a moment. Give it up, and try again, when it waits.\n\
         begin;\nset local lock_timeout = '500ms';\n{}{}commit;\n\n\
         -- Then `walhook setup`, as {role}: it finds the triggers there and begins its own store.\n",
        quote_identifier(&server.database),
        print::usage_of_schemas(source, &role),
        tables.join(", "),
        script.prepare,
        script.lock,
        script.complete
    ))
}
