//! Rows of the primary that events need beside the changed one: labels and their owners, releases, outlets, tracks, add-ons.
//!
//! Fetched in batches when first needed, then kept right by the stream itself, which carries these tables too. So a fact is
//! never older than the change it is asked for; it may be newer while capture lags behind.

mod address;
mod cache;
mod fetch;

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::config;
use crate::domain::addons::AddonChanges;
use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::event::{Addon, UserId};
use crate::domain::table::{Table, distro_queue, user_addon};
use crate::events::{Fact, Facts, Halt, LookupKey, Release, TranscodedFile};
use crate::postgres::ANSWER_TIMEOUT;
use crate::store::Store;

pub use address::email_of;
pub use fetch::{LookupError, try_queries};

use cache::Cache;
use fetch::{Primary, is_asked_for};

/// Distribution statuses that everybody knows; the configuration can add to them.
const DISTRIBUTION_STATUSES: [&str; 8] =
    ["scheduled", "transcoding", "batched", "complete", "error", "fault", "rejected", "batch_exception"];

/// The tables that are asked for rows beside the changed one. Add-ons are in the store.
const LOOKED_UP: [Table; 5] = [Table::Release, Table::Label, Table::Outlet, Table::Track, Table::TranscoderQueueFile];

pub struct Lookups {
    primary: Primary,
    /// Add-ons are kept there as of the checkpoint.
    store: Store,
    cache: Cache,
    distribution_statuses: HashSet<String>,
    /// Tables of which the platform's own SQL finds rows or values: the stream does not show those, so nothing is kept.
    uncached: Vec<Table>,
    /// Changed rows of this batch that came with a value missing, as they are on the primary; nothing for one that is gone.
    rows: HashMap<(Table, i64), Option<Tuple>>,
    /// Changes of these tables may be missing from the stream.
    doubtful: bool,
}

impl Lookups {
    pub fn new(url: &str, source: &config::Source, store: Store) -> Lookups {
        let configured = source.distribution_statuses.iter().map(String::as_str);
        let mapped = source.tables.meanings(Table::DistroQueue, column_name(Table::DistroQueue, distro_queue::status));
        let known = DISTRIBUTION_STATUSES.into_iter().chain(configured).chain(mapped);
        Lookups {
            primary: Primary::new(url, source),
            store,
            cache: Cache::default(),
            distribution_statuses: known.map(str::to_owned).collect(),
            uncached: Table::ALL.iter().copied().filter(|table| is_asked_for(source, *table)).collect(),
            rows: HashMap::new(),
            doubtful: false,
        }
    }

    /// For a comparison of rows as they are now: what users have is asked of the primary too, as the store knows it only as
    /// of the checkpoint.
    pub fn at_present(url: &str, source: &config::Source, store: Store) -> Lookups {
        let mut lookups = Lookups::new(url, source, store);
        lookups.uncached.push(Table::UserAddon);
        lookups
    }

    /// Connects to the primary and asks each query for no row, so that the first event does not wait for the connection and the
    /// columns' types.
    pub async fn warm_up(&mut self) -> Result<(), LookupError> {
        for table in LOOKED_UP {
            self.primary.rows(table, &[]).await?;
        }
        Ok(())
    }

    /// Sets whether the stream may lack changes. Then it says nothing about other rows: the primary is asked in each batch, and
    /// nothing is kept for the next.
    pub fn doubt(&mut self, doubtful: bool) {
        if self.doubtful != doubtful {
            self.forget();
        }
        self.doubtful = doubtful;
    }

    /// Follows the stream by one change.
    pub fn follow(&mut self, change: &Change) {
        if self.doubtful {
            return;
        }
        match &change.operation {
            Operation::Insert { new } => {
                if change.table == Table::TranscoderQueue && !self.uncached.contains(&Table::TranscoderQueueFile) {
                    self.cache.entry_begins(new);
                }
                self.cache.learn(change.table, new);
            }
            Operation::Update { old, new } => self.cache.update(change.table, old.as_ref(), new),
            Operation::Replace { new, .. } => self.cache.learn(change.table, new),
            Operation::Delete { old } => self.cache.delete(change.table, old),
            Operation::Truncate => self.cache.emptied(change.table),
        }
    }

    /// Prepares for a batch: forgets what the stream cannot keep right, and takes in the add-ons of users whose add-ons the
    /// batch is going to change, so that it changes what is known.
    pub async fn begin(&mut self, changes: &[Change]) -> Result<(), LookupError> {
        if self.doubtful {
            self.forget();
        }
        for table in &self.uncached {
            self.cache.forget(*table);
        }
        self.cache.begin();
        self.rows.clear();
        let mut users = HashSet::new();
        for change in changes.iter().filter(|change| change.table == Table::UserAddon) {
            let (old, new) = rows(&change.operation);
            let named = old.into_iter().chain(new).filter_map(|row| row.text(user_addon::user_id));
            users.extend(named.map(|user| LookupKey::Addons(UserId(user.into()))));
        }
        if users.is_empty() { Ok(()) } else { self.fetch(&users, None).await }
    }

    /// The change with what was fetched in place of what was not sent.
    pub fn completed<'a>(&self, change: &'a Change) -> Cow<'a, Change> {
        if self.rows.is_empty() {
            return Cow::Borrowed(change);
        }
        let (_, Some(new)) = rows(&change.operation) else { return Cow::Borrowed(change) };
        let found = id_of(change.table, new).and_then(|id| self.rows.get(&(change.table, id))?.as_ref());
        let Some(found) = found else { return Cow::Borrowed(change) };
        let mut completed = change.clone();
        if let Operation::Insert { new } | Operation::Update { new, .. } | Operation::Replace { new, .. } =
            &mut completed.operation
        {
            new.fill_from(found);
        }
        Cow::Owned(completed)
    }

    /// Whether what is asked for was on the primary once and is not any more.
    pub fn is_gone(&self, key: &LookupKey) -> bool {
        matches!(key, LookupKey::Row(table, id) if self.rows.get(&(*table, *id)) == Some(&None))
    }

    /// Forgets everything: what comes next does not follow on what was followed last.
    pub fn forget(&mut self) {
        self.cache = Cache::default();
        self.rows.clear();
    }

    /// Fetches all of `keys`; afterwards each is known, if only to be absent. Waits until the primary shows `transaction`.
    pub async fn fetch(&mut self, keys: &HashSet<LookupKey>, transaction: Option<u32>) -> Result<(), LookupError> {
        let mut seen = false;
        for (table, wanted) in by_table(keys) {
            if table == Table::UserAddon && !self.doubtful && !self.uncached.contains(&table) {
                let found = self.store.in_time(ANSWER_TIMEOUT, self.store.addons(&wanted)).await?;
                self.cache.addons_stored(&wanted, &found);
                continue;
            }
            if let Some(transaction) = transaction.filter(|_| !seen) {
                self.primary.wait_until_visible(transaction).await?;
                seen = true;
            }
            let rows = self.primary.rows(table, &wanted).await?;
            self.cache.fetched(table, &wanted, &rows);
        }
        for (table, wanted) in changed_rows(keys) {
            if let Some(transaction) = transaction.filter(|_| !seen) {
                self.primary.wait_until_visible(transaction).await?;
                seen = true;
            }
            let ids = wanted.iter().map(ToString::to_string).collect::<Vec<_>>();
            let found = self.primary.rows(table, &ids).await?;
            self.rows.extend(wanted.into_iter().map(|id| ((table, id), None)));
            self.rows.extend(found.into_iter().filter_map(|row| Some(((table, id_of(table, &row)?), Some(row)))));
        }
        Ok(())
    }
}

/// The rows that an operation names: before and after.
fn rows(operation: &Operation) -> (Option<&Tuple>, Option<&Tuple>) {
    match operation {
        Operation::Insert { new } => (None, Some(new)),
        Operation::Update { old, new } => (old.as_ref(), Some(new)),
        Operation::Replace { old, new } => (Some(old), Some(new)),
        Operation::Delete { old } => (Some(old), None),
        Operation::Truncate => (None, None),
    }
}

/// What a change of a user's add-ons is to the store.
pub fn follow_addons(change: &Change, changes: &mut AddonChanges) {
    if change.table != Table::UserAddon {
        return;
    }
    if change.operation == Operation::Truncate {
        changes.clear();
    }
    let (old, new) = rows(&change.operation);
    match old.map(|old| (old.text(user_addon::user_id), old.get(user_addon::addon))) {
        Some((Some(user), Datum::Text(addon))) => changes.revoke(user, addon),
        // Which one is not known: rather none than one that the user has no more.
        Some((Some(user), Datum::Absent)) => changes.revoke_all(user),
        Some((_, _)) | None => {}
    }
    if let Some((user, addon)) = new.and_then(cache::addon_of) {
        changes.grant(&user.0, &addon);
    }
}

impl Facts for Lookups {
    fn release(&self, id: i64) -> Fact<std::sync::Arc<Release>> {
        let release = self.cache.release(id).ok_or(Halt::Lookup(LookupKey::Release(id)))?;
        release.ok_or(Halt::Unrouted("release_not_found"))
    }

    fn label_owner(&self, label: i64) -> Fact<Option<UserId>> {
        let owner = self.cache.label_owner(label).ok_or(Halt::Lookup(LookupKey::Label(label)))?;
        owner.ok_or(Halt::Unrouted("label_not_found"))
    }

    fn outlet_name(&self, outlet: i64) -> Fact<Option<std::sync::Arc<str>>> {
        self.cache.outlet_name(outlet).ok_or(Halt::Lookup(LookupKey::Outlet(outlet)))
    }

    fn track_release(&self, track: i64) -> Fact<i64> {
        let release = self.cache.track_release(track).ok_or(Halt::Lookup(LookupKey::Track(track)))?;
        release.ok_or(Halt::Unrouted("track_not_found"))
    }

    fn transcoded_files(&self, entry: i64) -> Fact<std::sync::Arc<[TranscodedFile]>> {
        self.cache.files(entry).ok_or(Halt::Lookup(LookupKey::Files(entry)))
    }

    fn has_addon(&self, user: &UserId, addon: Addon) -> Fact<bool> {
        self.cache.has_addon(user, addon).ok_or_else(|| Halt::Lookup(LookupKey::Addons(user.clone())))
    }

    fn recognises_distribution_status(&self, status: &str) -> bool {
        self.distribution_statuses.contains(status)
    }
}

fn column_name(table: Table, column: crate::domain::table::Column) -> &'static str {
    table.columns()[usize::from(column.0)]
}

fn id_of(table: Table, row: &Tuple) -> Option<i64> {
    row.text(table.column("id")?)?.parse().ok()
}

/// The rows that came with a value missing, by table.
fn changed_rows(keys: &HashSet<LookupKey>) -> HashMap<Table, Vec<i64>> {
    let mut asked: HashMap<Table, Vec<i64>> = HashMap::new();
    for key in keys {
        if let LookupKey::Row(table, id) = key {
            asked.entry(*table).or_default().push(*id);
        }
    }
    asked
}

/// The tables to ask and the keys to ask them for, as text.
fn by_table(keys: &HashSet<LookupKey>) -> Vec<(Table, Vec<String>)> {
    let mut asked: Vec<(Table, Vec<String>)> = Vec::new();
    for key in keys {
        let (table, key) = match key {
            LookupKey::Release(id) => (Table::Release, id.to_string()),
            LookupKey::Label(id) => (Table::Label, id.to_string()),
            LookupKey::Outlet(id) => (Table::Outlet, id.to_string()),
            LookupKey::Track(id) => (Table::Track, id.to_string()),
            LookupKey::Files(id) => (Table::TranscoderQueueFile, id.to_string()),
            LookupKey::Addons(user) => (Table::UserAddon, user.0.to_string()),
            LookupKey::Row(..) => continue,
        };
        match asked.iter_mut().find(|(asked, _)| *asked == table) {
            Some((_, keys)) => keys.push(key),
            None => asked.push((table, vec![key])),
        }
    }
    asked
}
