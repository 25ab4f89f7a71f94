//! Looks up the rows that events need besides the changed row: labels and their owners, releases,
//! outlets, tracks, files, add-ons.
//!
//! The store has these rows as of the checkpoint, and a cache follows the stream from there: rules
//! see rows exactly as of their change, however late it is read. Three kinds of rows are read from
//! the primary, as they are now: those that come from the platform's own SQL, those of tables whose
//! mapping has changed since they were copied, and all while the stream may lack changes.

mod cache;
mod extra;
mod fetch;
mod users;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::config;
use crate::domain::addons::AddonChanges;
use crate::domain::change::{Change, Datum, Operation, Tuple, canonical_int};
use crate::domain::event::{Addon, UserId};
use crate::domain::ledger::{LedgerChanges, LedgerRow};
use crate::domain::lsn::Lineage;
use crate::domain::position::Checkpoint;
use crate::domain::table::{Table, distro_queue, transcoder_queue_file, user_addon};
use crate::events::{Fact, Facts, LookupKey, NoEvent, Release, TranscodedFile};
use crate::store::Store;
use crate::store::lookup_rows::UserAddon;

pub use fetch::{LookupError, try_queries};
pub use users::{email_of, user_exists};

use cache::{AddonChange, Cache};
use fetch::{Fetched, Primary, Result};

/// Rows that are fetched from the store at once. They may be long.
const ROWS_AT_ONCE: usize = 200;

/// The documented distribution statuses. The configuration can add others.
const DISTRIBUTION_STATUSES: [&str; 8] = [
    "scheduled",
    "transcoding",
    "batched",
    "complete",
    "error",
    "fault",
    "rejected",
    "batch_exception",
];

/// The tables that rules look up by id.
const LOOKED_UP: [Table; 5] = [
    Table::Release,
    Table::Label,
    Table::Outlet,
    Table::Track,
    Table::TranscoderQueueFile,
];

pub struct Lookups {
    primary: Primary,
    /// The store, which has rows as of the checkpoint.
    store: Store,
    cache: Cache,
    /// The checkpoint whose changes the cache includes, and no others. `None` while it is between
    /// two checkpoints.
    followed: Option<Checkpoint>,
    distribution_statuses: HashSet<String>,
    /// The keys of the extra values of each table.
    extra: HashMap<Table, Vec<String>>,
    /// The tables whose rows the store may have, with their mappings. None in a repair, which
    /// compares current rows.
    mappings: Vec<(Table, String)>,
    /// The tables whose rows the store has. `None` until they are known, and after another process
    /// may have changed them.
    stored: Option<HashSet<Table>>,
    /// Current rows of the primary, for changes of this batch whose values are incomplete. `None`
    /// for a row that no longer exists.
    rows: HashMap<(Table, i64), Option<Tuple>>,
    /// The keys of this batch that the primary could not look up, with its errors.
    failed: HashMap<(Table, String), String>,
}

impl Lookups {
    pub fn new(url: &str, source: &config::Source, store: Store) -> Lookups {
        let configured = source.distribution_statuses.iter().map(String::as_str);
        let mapped = source.tables.meanings(
            Table::DistroQueue,
            column_name(Table::DistroQueue, distro_queue::status),
        );
        let known = DISTRIBUTION_STATUSES
            .into_iter()
            .chain(configured)
            .chain(mapped);

        Lookups {
            primary: Primary::new(url, source),
            store,
            cache: Cache::default(),
            followed: None,
            distribution_statuses: known.map(str::to_owned).collect(),
            extra: extra::keys(&source.tables),
            mappings: Table::ALL
                .iter()
                .filter(|table| source.copies_lookups_of(**table))
                .map(|table| (*table, source.tables.lookup_mapping(*table)))
                .collect(),
            stored: None,
            rows: HashMap::new(),
            failed: HashMap::new(),
        }
    }

    /// Creates lookups for a repair, which compares current rows: the store has those of the
    /// checkpoint. They do not use the store.
    pub fn for_repair(url: &str, source: &config::Source, store: Store) -> Lookups {
        Lookups {
            mappings: Vec::new(),
            ..Lookups::new(url, source, store)
        }
    }

    /// Reads the newest rows of a captured table from the primary.
    pub async fn newest(&mut self, table: Table, count: u32) -> Result<Vec<Tuple>> {
        self.primary.newest(table, count).await
    }

    /// Connects to the primary and runs each of its queries without keys, so that the first event
    /// does not wait for the connection and the columns' types.
    pub async fn warm_up(&mut self) -> Result<()> {
        let stored = self.stored_tables().await?;
        for table in LOOKED_UP
            .into_iter()
            .filter(|table| !stored.contains(table))
        {
            self.primary.rows(table, &[], None).await?;
        }

        Ok(())
    }

    /// Sets whether the stream may lack changes of looked-up tables. Then the rows in the store may
    /// be too old, until a repair copies them again.
    pub async fn set_incomplete(&mut self, incomplete: bool) -> Result<()> {
        if incomplete && !self.stored_tables().await?.is_empty() {
            self.forget_stored(Table::ALL.iter().copied().collect())
                .await?;
        }

        Ok(())
    }

    /// Returns the tables whose rows the store has. Forgets those that were copied under another
    /// mapping: their rows would have to be copied again.
    async fn stored_tables(&mut self) -> Result<HashSet<Table>> {
        if let Some(stored) = &self.stored {
            return Ok(stored.clone());
        }

        if self.mappings.is_empty() {
            return Ok(self.stored.insert(HashSet::new()).clone());
        }

        let copied = self.store.lookup_tables().await?;
        let mut stored = HashSet::new();
        let mut outdated = HashSet::new();

        for (table, mapping) in Table::ALL
            .iter()
            .filter_map(|table| Some((*table, copied.get(&table.number()?)?)))
        {
            let is_current = self.mappings.contains(&(table, mapping.clone()));
            if is_current {
                stored.insert(table)
            } else {
                outdated.insert(table)
            };
        }

        self.stored = Some(stored.clone());

        if !outdated.is_empty() {
            self.forget_stored(outdated).await?;
        }

        Ok(stored)
    }

    async fn forget_stored(&mut self, tables: HashSet<Table>) -> Result<()> {
        let numbers: Vec<i16> = tables.iter().filter_map(|table| table.number()).collect();
        self.store.forget_lookup_tables(&numbers).await?;
        self.forget();

        if let Some(stored) = &mut self.stored {
            stored.retain(|table| !tables.contains(table));
        }

        tracing::warn!(
            "looked-up rows in the store are outdated: rows are read from the primary, as they are now, until `walhook repair --force` \
             copies them again"
        );
        Ok(())
    }

    fn is_stored(&self, table: Table) -> bool {
        self.stored
            .as_ref()
            .is_some_and(|stored| stored.contains(&table))
    }

    /// Prepares for changes that continue from a checkpoint. Drops everything unless the last
    /// changes that were applied end there: what is cached may lack changes that another process
    /// has stored, or include changes that do not exist on the new timeline.
    pub fn continue_from(&mut self, checkpoint: &Checkpoint, lineage: Lineage) {
        // Until the end of the changes: an error may stop in between.
        if self.followed.take().as_ref() != Some(checkpoint) || checkpoint.lineage != lineage {
            self.forget();
            self.stored = None;
        }
    }

    /// Notes that all changes up to a checkpoint are applied.
    pub fn reached(&mut self, checkpoint: &Checkpoint) {
        self.followed = Some(checkpoint.clone());
    }

    /// Applies a change of the stream to the cache, and adds what the store has to change to
    /// `changes`. Releases outside of their table's condition are followed too: other rows may
    /// refer to them.
    pub fn follow(&mut self, change: &Change, changes: &mut LedgerChanges) {
        let change = match change.table {
            Table::Release => Some(Cow::Borrowed(change)),
            _ => change.within(),
        };

        if let Some(change) = change.filter(|change| self.is_stored(change.table)) {
            self.cache.follow(&change, changes);
        }
    }

    /// Prepares for a batch from a timeline: drops rows that do not follow the stream, and loads
    /// the rows that the batch changes and does not show completely, to apply the changes to them.
    pub async fn begin(&mut self, changes: &[Change], timeline: u32) -> Result<()> {
        self.primary.set_timeline(timeline);
        let stored = self.stored_tables().await?;
        for table in Table::ALL.iter().filter(|table| !stored.contains(table)) {
            self.cache.forget(*table);
        }

        self.cache.begin();
        self.rows.clear();
        self.failed.clear();

        let mut changed = ChangedRows::default();

        for change in changes.iter().filter(|change| self.is_stored(change.table)) {
            changed.add(change, &self.cache, self.extra_keys(change.table));
        }

        for (table, ids) in &changed.rows {
            self.fetch_stored(*table, ids).await?;
        }

        let entries = changed.entries(&self.cache);
        if !entries.is_empty() {
            self.fetch_files(&entries.into_iter().collect::<Vec<_>>())
                .await?;
        }

        if !changed.users.is_empty() {
            self.fetch_addons(&changed.users).await?;
        }

        Ok(())
    }

    async fn fetch_stored(&mut self, table: Table, ids: &[i64]) -> Result<()> {
        for ids in ids.chunks(ROWS_AT_ONCE) {
            let found = self.store.lookup_rows(table, ids).await?;
            self.cache.fetched(table, ids, &rows_of(table, &found));
        }

        Ok(())
    }

    async fn fetch_files(&mut self, entries: &[i64]) -> Result<()> {
        let found = self.store.files_of(entries).await?;
        self.cache
            .files_fetched(entries, &rows_of(Table::TranscoderQueueFile, &found));

        Ok(())
    }

    async fn fetch_addons(&mut self, users: &[String]) -> Result<()> {
        let found = self.store.addons(users).await?;
        self.cache.addons_fetched(users, &found);

        Ok(())
    }

    /// Returns the change, with fetched values in place of those that were not sent.
    pub fn completed<'a>(&self, change: &'a Change) -> Cow<'a, Change> {
        if self.rows.is_empty() {
            return Cow::Borrowed(change);
        }

        let (_, Some(new)) = change.operation.rows() else {
            return Cow::Borrowed(change);
        };

        let found = new
            .id()
            .and_then(|id| self.rows.get(&(change.table, id))?.as_ref());
        let Some(found) = found else {
            return Cow::Borrowed(change);
        };

        let mut completed = change.clone();
        if let Operation::Insert { new }
        | Operation::Update { new, .. }
        | Operation::Replace { new, .. } = &mut completed.operation
        {
            new.fill_from(found);
        }

        Cow::Owned(completed)
    }

    /// Returns whether `key` is a changed row that no longer exists on the primary.
    pub fn is_gone(&self, key: &LookupKey) -> bool {
        matches!(key, LookupKey::Row(table, id) if self.rows.get(&(*table, *id)) == Some(&None))
    }

    /// Returns why the primary could not look up a key.
    pub fn failure(&self, key: &LookupKey) -> Option<&str> {
        let (table, _, key) = parts(key);
        self.failed.get(&(table, key)).map(String::as_str)
    }

    /// Drops everything.
    fn forget(&mut self) {
        self.cache = Cache::default();
        self.rows.clear();
    }

    /// Fetches and caches all of `keys`. Rows that do not exist are cached as absent. Rows of the
    /// primary are not older than the commit of `transaction`.
    pub async fn fetch(
        &mut self,
        keys: &HashSet<LookupKey>,
        transaction: Option<u32>,
    ) -> Result<()> {
        for ((table, is_changed_row), wanted) in by_table(keys) {
            if self.is_stored(table) && !is_changed_row {
                let ids: Vec<i64> = wanted.iter().filter_map(|key| canonical_int(key)).collect();

                match table {
                    Table::UserAddon => self.fetch_addons(&wanted).await?,
                    Table::TranscoderQueueFile => self.fetch_files(&ids).await?,
                    _ => self.fetch_stored(table, &ids).await?,
                }

                continue;
            }

            let Fetched { rows, failed } = self.primary.rows(table, &wanted, transaction).await?;
            let known = |key: &String| !failed.iter().any(|(failed, _)| failed == key);
            let wanted: Vec<String> = wanted.into_iter().filter(known).collect();
            let ids: Vec<i64> = wanted.iter().filter_map(|key| canonical_int(key)).collect();

            self.failed
                .extend(failed.into_iter().map(|(key, error)| ((table, key), error)));

            match table {
                _ if is_changed_row => {
                    self.rows.extend(ids.iter().map(|id| ((table, *id), None)));
                    self.rows.extend(
                        rows.into_iter()
                            .filter_map(|row| Some(((table, row.id()?), Some(row)))),
                    );
                }
                Table::UserAddon => {
                    let found: Vec<UserAddon> = rows.iter().filter_map(addon_of).collect();
                    self.cache.addons_fetched(&wanted, &found);
                }
                Table::TranscoderQueueFile => self.cache.files_fetched(&ids, &rows),
                _ => self.cache.fetched(table, &ids, &rows),
            }
        }

        Ok(())
    }
}

/// The rows that a batch changes and that have to be known to apply its changes.
#[derive(Default)]
struct ChangedRows {
    /// Rows whose change does not show all values, or may move a file to another entry.
    rows: BTreeMap<Table, Vec<i64>>,
    /// The entries to which changed files belong afterwards.
    entries: BTreeSet<i64>,
    /// The changed files.
    files: BTreeSet<i64>,
    users: Vec<String>,
}

impl ChangedRows {
    fn add(&mut self, change: &Change, cache: &Cache, extra: &[String]) {
        let table = change.table;
        let (old, new) = change.operation.rows();

        if table == Table::UserAddon {
            let named = old
                .into_iter()
                .chain(new)
                .filter_map(|row| row.text(user_addon::user_id));
            let unknown = named.filter(|user| !cache.has_addons_of(&UserId((*user).into())));
            self.users.extend(unknown.map(str::to_owned));
            return;
        }

        let is_file = table == Table::TranscoderQueueFile;
        let is_partial = new.is_some_and(|new| {
            table
                .looked_up_columns()
                .any(|column| *new.get(column) == Datum::Absent)
                || extra.iter().any(|key| new.extra.get(key).is_none())
        });

        for id in old.into_iter().chain(new).filter_map(Tuple::id) {
            if is_file {
                self.files.insert(id);
            }

            if (is_file || is_partial) && cache.row(table, id).is_none() {
                self.rows.entry(table).or_default().push(id);
            }
        }

        let parent = new
            .filter(|_| is_file)
            .and_then(|new| new.int(transcoder_queue_file::transcoder_queue_id));
        self.entries.extend(parent);
    }

    /// Returns the entries whose files have to be known: those of the changed files before and
    /// after their change.
    fn entries(&self, cache: &Cache) -> BTreeSet<i64> {
        let mut entries = self.entries.clone();

        for id in &self.files {
            let row = cache.row(Table::TranscoderQueueFile, *id).flatten();
            entries.extend(row.and_then(|row| row.int(transcoder_queue_file::transcoder_queue_id)));
        }

        entries.retain(|entry| !cache.has_files_of(*entry));
        entries
    }
}

fn rows_of(table: Table, found: &[LedgerRow]) -> Vec<Tuple> {
    found
        .iter()
        .filter_map(|row| row.state.looked_up_row(table, row.id))
        .collect()
}

fn addon_of(row: &Tuple) -> Option<UserAddon> {
    let (user, addon) = row
        .text(user_addon::user_id)
        .zip(row.text(user_addon::addon))?;
    Some(UserAddon {
        user: user.to_owned(),
        addon: addon.to_owned(),
        copies: 1,
    })
}

/// Adds a change of a user's add-ons to those that the store will apply.
pub fn follow_addons(change: &Change, changes: &mut AddonChanges) {
    if change.table != Table::UserAddon {
        return;
    }

    if change.operation == Operation::Truncate {
        changes.clear();
    }

    let (taken, given) = AddonChange::of(&change.operation);
    match taken {
        AddonChange::None => {}
        AddonChange::One(user, addon) => changes.revoke(user, addon),
        AddonChange::All(user) => changes.revoke_all(user),
    }

    if let Some((user, addon)) = given {
        changes.grant(user, addon);
    }
}

/// Returns what the cache has, or that the key has to be fetched.
fn known<T>(cached: Option<T>, key: LookupKey) -> Fact<T> {
    cached.ok_or(NoEvent::Lookup(key))
}

impl Facts for Lookups {
    fn release(&self, id: i64) -> Fact<std::sync::Arc<Release>> {
        known(self.cache.release(id), LookupKey::Release(id))?
            .ok_or(NoEvent::Unrouted("release_not_found"))
    }

    fn label_owner(&self, label: i64) -> Fact<Option<UserId>> {
        known(self.cache.label_owner(label), LookupKey::Label(label))?
            .ok_or(NoEvent::Unrouted("label_not_found"))
    }

    fn outlet_name(&self, outlet: i64) -> Fact<Option<std::sync::Arc<str>>> {
        known(self.cache.outlet_name(outlet), LookupKey::Outlet(outlet))
    }

    fn track_release(&self, track: i64) -> Fact<i64> {
        known(self.cache.track_release(track), LookupKey::Track(track))?
            .ok_or(NoEvent::Unrouted("track_not_found"))
    }

    fn transcoded_files(&self, entry: i64) -> Fact<std::sync::Arc<[TranscodedFile]>> {
        known(self.cache.files(entry), LookupKey::Files(entry))
    }

    fn has_addon(&self, user: &UserId, addon: Addon) -> Fact<bool> {
        known(
            self.cache.has_addon(user, addon),
            LookupKey::Addons(user.clone()),
        )
    }

    fn recognises_distribution_status(&self, status: &str) -> bool {
        self.distribution_statuses.contains(status)
    }
}

fn column_name(table: Table, column: crate::domain::table::Column) -> &'static str {
    table.columns()[usize::from(column.0)]
}

/// Returns the table to query, whether the key is a changed row that was sent incompletely, and the
/// key as text.
fn parts(key: &LookupKey) -> (Table, bool, String) {
    let (table, id) = match key {
        LookupKey::Release(id) => (Table::Release, id),
        LookupKey::Label(id) => (Table::Label, id),
        LookupKey::Outlet(id) => (Table::Outlet, id),
        LookupKey::Track(id) => (Table::Track, id),
        LookupKey::Files(id) => (Table::TranscoderQueueFile, id),
        LookupKey::Row(table, id) => (*table, id),
        LookupKey::Addons(user) => return (Table::UserAddon, false, user.0.to_string()),
    };
    (table, matches!(key, LookupKey::Row(..)), id.to_string())
}

/// Groups keys by the table to query, and by whether they are changed rows that were sent
/// incompletely.
fn by_table(keys: &HashSet<LookupKey>) -> BTreeMap<(Table, bool), Vec<String>> {
    let mut grouped: BTreeMap<(Table, bool), Vec<String>> = BTreeMap::new();

    for (table, is_changed_row, key) in keys.iter().map(parts) {
        grouped
            .entry((table, is_changed_row))
            .or_default()
            .push(key);
    }

    grouped
}
