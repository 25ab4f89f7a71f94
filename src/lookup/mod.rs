//! Looks up rows of the primary that events need besides the changed row: labels and their owners, releases, outlets, tracks, add-ons.
//!
//! Rows are fetched in batches when first needed, and cached. The stream includes these tables and keeps the cache up to date. A looked-up
//! row is therefore never older than the change that needs it; it may be newer while capture lags.

mod address;
mod cache;
mod fetch;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use crate::config;
use crate::domain::addons::AddonChanges;
use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::event::{Addon, UserId};
use crate::domain::lsn::Lineage;
use crate::domain::position::Checkpoint;
use crate::domain::table::{Table, distro_queue, user_addon};
use crate::events::{Fact, Facts, LookupKey, NoEvent, Release, TranscodedFile};
use crate::postgres::ANSWER_TIMEOUT;
use crate::store::Store;

pub use address::email_of;
pub use fetch::{LookupError, try_queries};

use cache::Cache;
use fetch::{Primary, uses_own_sql};

/// The documented distribution statuses. The configuration can add others.
const DISTRIBUTION_STATUSES: [&str; 8] =
    ["scheduled", "transcoding", "batched", "complete", "error", "fault", "rejected", "batch_exception"];

/// The tables that are looked up on the primary. Add-ons are looked up in the store.
const LOOKED_UP: [Table; 5] = [Table::Release, Table::Label, Table::Outlet, Table::Track, Table::TranscoderQueueFile];

pub struct Lookups {
    primary: Primary,
    /// The store, which has the users' add-ons as of the checkpoint.
    store: Store,
    cache: Cache,
    /// The checkpoint whose changes the cache includes, and no others. `None` while it is between two checkpoints.
    followed: Option<Checkpoint>,
    distribution_statuses: HashSet<String>,
    /// Tables whose rows or values come from the platform's own SQL. The stream does not show their changes, so they are not cached.
    uncached: Vec<Table>,
    /// Current rows of the primary, for changes of this batch whose values are incomplete. `None` for a row that no longer exists.
    rows: HashMap<(Table, i64), Option<Tuple>>,
    /// Whether the stream may lack changes of looked-up tables.
    incomplete: bool,
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
            followed: None,
            distribution_statuses: known.map(str::to_owned).collect(),
            uncached: Table::ALL.iter().copied().filter(|table| uses_own_sql(source, *table)).collect(),
            rows: HashMap::new(),
            incomplete: false,
        }
    }

    /// Creates lookups for a repair, which compares current rows. Add-ons are looked up on the primary too, because the store has them
    /// as of the checkpoint.
    pub fn for_repair(url: &str, source: &config::Source, store: Store) -> Lookups {
        let mut lookups = Lookups::new(url, source, store);
        lookups.uncached.push(Table::UserAddon);
        lookups
    }

    /// Connects to the primary and runs each query without keys, so that the first event does not wait for the connection and the columns'
    /// types.
    pub async fn warm_up(&mut self) -> Result<(), LookupError> {
        for table in LOOKED_UP {
            self.primary.rows(table, &[], None).await?;
        }
        Ok(())
    }

    /// Sets whether the stream may lack changes of looked-up tables. If so, nothing is cached from one batch to the next.
    pub fn set_incomplete(&mut self, incomplete: bool) {
        if self.incomplete != incomplete {
            self.forget();
        }
        self.incomplete = incomplete;
    }

    /// Prepares for changes that continue from a checkpoint. Drops everything unless the last changes that were applied end there: what is
    /// cached may lack changes that another process has stored, or include changes that do not exist on the new timeline.
    pub fn continue_from(&mut self, checkpoint: &Checkpoint, lineage: Lineage) {
        // Until the end of the changes: an error may stop in between.
        if self.followed.take().as_ref() != Some(checkpoint) || checkpoint.lineage != lineage {
            self.forget();
        }
    }

    /// Notes that all changes up to a checkpoint are applied.
    pub fn reached(&mut self, checkpoint: &Checkpoint) {
        self.followed = Some(checkpoint.clone());
    }

    /// Applies a change of the stream to the cache.
    pub fn follow(&mut self, change: &Change) {
        if self.incomplete {
            return;
        }
        match &change.operation {
            Operation::Insert { new } => {
                if change.table == Table::TranscoderQueue && !self.uncached.contains(&Table::TranscoderQueueFile) {
                    self.cache.entry_inserted(new);
                }
                self.cache.learn(change.table, new);
            }
            Operation::Update { old, new } => self.cache.update(change.table, old.as_ref(), new),
            Operation::Replace { new, .. } => self.cache.learn(change.table, new),
            Operation::Delete { old } => self.cache.delete(change.table, old),
            Operation::Truncate => self.cache.truncated(change.table),
        }
    }

    /// Prepares for a batch from a timeline: drops what the stream cannot keep up to date, and loads the add-ons of users whose add-ons the
    /// batch changes, to apply the changes to them.
    pub async fn begin(&mut self, changes: &[Change], timeline: u32) -> Result<(), LookupError> {
        self.primary.set_timeline(timeline);
        if self.incomplete {
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

    /// Returns the change, with fetched values in place of those that were not sent.
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

    /// Returns whether `key` is a changed row that no longer exists on the primary.
    pub fn is_gone(&self, key: &LookupKey) -> bool {
        matches!(key, LookupKey::Row(table, id) if self.rows.get(&(*table, *id)) == Some(&None))
    }

    /// Drops everything.
    fn forget(&mut self) {
        self.cache = Cache::default();
        self.rows.clear();
    }

    /// Fetches and caches all of `keys`. Rows that do not exist are cached as absent. Rows of the primary are not older than the commit of
    /// `transaction`.
    pub async fn fetch(&mut self, keys: &HashSet<LookupKey>, transaction: Option<u32>) -> Result<(), LookupError> {
        for ((table, is_changed_row), wanted) in by_table(keys) {
            if table == Table::UserAddon && !self.incomplete && !self.uncached.contains(&table) {
                let found = self.store.in_time(ANSWER_TIMEOUT, self.store.addons(&wanted)).await?;
                self.cache.addons_stored(&wanted, &found);
                continue;
            }
            let rows = self.primary.rows(table, &wanted, transaction).await?;
            if is_changed_row {
                let ids = wanted.iter().filter_map(|id| id.parse().ok());
                self.rows.extend(ids.map(|id| ((table, id), None)));
                self.rows.extend(rows.into_iter().filter_map(|row| Some(((table, id_of(table, &row)?), Some(row)))));
            } else {
                self.cache.fetched(table, &wanted, &rows);
            }
        }
        Ok(())
    }
}

/// Returns the row before and after an operation, if there is one.
fn rows(operation: &Operation) -> (Option<&Tuple>, Option<&Tuple>) {
    match operation {
        Operation::Insert { new } => (None, Some(new)),
        Operation::Update { old, new } => (old.as_ref(), Some(new)),
        Operation::Replace { old, new } => (Some(old), Some(new)),
        Operation::Delete { old } => (Some(old), None),
        Operation::Truncate => (None, None),
    }
}

/// Adds a change of a user's add-ons to those that the store will apply.
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
        // It is unknown which add-on was revoked. Better too few add-ons than one that the user no longer has.
        Some((Some(user), Datum::Absent)) => changes.revoke_all(user),
        Some((_, _)) | None => {}
    }
    if let Some((user, addon)) = new.and_then(cache::addon_of) {
        changes.grant(&user.0, &addon);
    }
}

impl Facts for Lookups {
    fn release(&self, id: i64) -> Fact<std::sync::Arc<Release>> {
        let release = self.cache.release(id).ok_or(NoEvent::Lookup(LookupKey::Release(id)))?;
        release.ok_or(NoEvent::Unrouted("release_not_found"))
    }

    fn label_owner(&self, label: i64) -> Fact<Option<UserId>> {
        let owner = self.cache.label_owner(label).ok_or(NoEvent::Lookup(LookupKey::Label(label)))?;
        owner.ok_or(NoEvent::Unrouted("label_not_found"))
    }

    fn outlet_name(&self, outlet: i64) -> Fact<Option<std::sync::Arc<str>>> {
        self.cache.outlet_name(outlet).ok_or(NoEvent::Lookup(LookupKey::Outlet(outlet)))
    }

    fn track_release(&self, track: i64) -> Fact<i64> {
        let release = self.cache.track_release(track).ok_or(NoEvent::Lookup(LookupKey::Track(track)))?;
        release.ok_or(NoEvent::Unrouted("track_not_found"))
    }

    fn transcoded_files(&self, entry: i64) -> Fact<std::sync::Arc<[TranscodedFile]>> {
        self.cache.files(entry).ok_or(NoEvent::Lookup(LookupKey::Files(entry)))
    }

    fn has_addon(&self, user: &UserId, addon: Addon) -> Fact<bool> {
        self.cache.has_addon(user, addon).ok_or_else(|| NoEvent::Lookup(LookupKey::Addons(user.clone())))
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

/// Groups keys by the table to query, and by whether they are changed rows that were sent incompletely.
fn by_table(keys: &HashSet<LookupKey>) -> BTreeMap<(Table, bool), Vec<String>> {
    let mut grouped: BTreeMap<(Table, bool), Vec<String>> = BTreeMap::new();
    for key in keys {
        let (table, id) = match key {
            LookupKey::Release(id) => (Table::Release, id),
            LookupKey::Label(id) => (Table::Label, id),
            LookupKey::Outlet(id) => (Table::Outlet, id),
            LookupKey::Track(id) => (Table::Track, id),
            LookupKey::Files(id) => (Table::TranscoderQueueFile, id),
            LookupKey::Row(table, id) => (*table, id),
            LookupKey::Addons(user) => {
                grouped.entry((Table::UserAddon, false)).or_default().push(user.0.to_string());
                continue;
            }
        };
        grouped.entry((table, matches!(key, LookupKey::Row(..)))).or_default().push(id.to_string());
    }
    grouped
}
