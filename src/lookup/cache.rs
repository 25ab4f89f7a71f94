//! The cache of looked-up rows. `None` means "unknown: fetch it"; `Some(None)` means "does not
//! exist".
//!
//! During a batch it has every row that the batch has changed or needs. What is removed between
//! batches is read again from the store, which then has the same rows.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::event::{Addon, UserId};
use crate::domain::ledger::{LedgerChanges, State};
use crate::domain::table::{
    Table, label, outlet, release, track, transcoder_queue_file as file, user_addon,
};
use crate::events::{Release, TranscodedFile};
use crate::store::lookup_rows::UserAddon;

/// Bounds the memory between batches, in bytes: enough for a hundred thousand rows.
const MAX_WRITTEN: usize = 32 << 20;
/// The estimated size of an entry of a map, in bytes, without long texts.
const ENTRY_OVERHEAD: usize = 128;

/// The add-ons of one user, each with the number of rows that say so.
type Addons = HashMap<Box<str>, i32>;

/// The ids and looked-up columns of one table's rows. None for a row that does not exist.
type Rows = HashMap<i64, Option<Arc<Tuple>>>;

#[derive(Default)]
pub struct Cache {
    /// Rows of [`Table::looked_up`] tables, by table: a batch drops whole tables.
    rows: HashMap<Table, Rows>,
    /// The ids of all files of a transcoder queue entry.
    files: HashMap<i64, BTreeSet<i64>>,
    addons: HashMap<UserId, Addons>,
    /// The bytes that were added since the cache was empty. It has no more.
    written: usize,
    /// Tables that the batch has truncated. Until it is stored, the store still has the former
    /// rows.
    emptied: HashSet<Table>,
}

impl Cache {
    pub fn release(&self, id: i64) -> Option<Option<Arc<Release>>> {
        let row = self.row(Table::Release, id)?;
        let release = row.and_then(|row| {
            // A release without a label has no owner, not even its former one.
            let label_id = row.int(release::label_id)?;
            let text = |column| row.text(column).map(str::to_owned);
            let cat = text(release::cat);
            let title = text(release::title);
            let pre_review_hold = row.text(release::pre_review_hold).is_some_and(is_true);

            Some(Arc::new(Release {
                label_id,
                cat,
                title,
                pre_review_hold,
            }))
        });

        Some(release)
    }

    pub fn label_owner(&self, id: i64) -> Option<Option<Option<UserId>>> {
        let row = self.row(Table::Label, id)?;
        Some(row.map(|row| row.text(label::user_id).map(|user| UserId(user.into()))))
    }

    pub fn outlet_name(&self, id: i64) -> Option<Option<Arc<str>>> {
        let row = self.row(Table::Outlet, id)?;
        Some(row.and_then(|row| row.text(outlet::name).map(Arc::from)))
    }

    pub fn track_release(&self, id: i64) -> Option<Option<i64>> {
        let row = self.row(Table::Track, id)?;
        Some(row.and_then(|row| row.int(track::release_id)))
    }

    /// Returns the files of an entry by id. None if one of them is unknown.
    pub fn files(&self, entry: i64) -> Option<Arc<[TranscodedFile]>> {
        let ids = self.files.get(&entry)?;
        let mut files = Vec::with_capacity(ids.len());

        for id in ids {
            let row = self.row(Table::TranscoderQueueFile, *id)??;
            let asset_type_id = row.int(file::asset_type_id).unwrap_or_default();
            let status = row.text(file::status).unwrap_or_default().to_owned();

            files.push(TranscodedFile {
                asset_type_id,
                status,
            });
        }

        Some(files.into())
    }

    pub fn has_addon(&self, user: &UserId, addon: Addon) -> Option<bool> {
        let known = self
            .addons
            .get(user)
            .map(|addons| addons.contains_key(addon.as_str()));
        known.or_else(|| self.emptied.contains(&Table::UserAddon).then_some(false))
    }

    pub fn has_addons_of(&self, user: &UserId) -> bool {
        self.addons.contains_key(user)
    }

    pub fn has_files_of(&self, entry: i64) -> bool {
        self.files.contains_key(&entry)
    }

    /// Returns the row as of the last change that was applied.
    pub fn row(&self, table: Table, id: i64) -> Option<Option<Arc<Tuple>>> {
        let known = self
            .rows
            .get(&table)
            .and_then(|rows| rows.get(&id))
            .cloned();
        known.or_else(|| self.emptied.contains(&table).then_some(None))
    }

    /// Starts a batch. All earlier ones are stored, so what is dropped here is read again.
    pub fn begin(&mut self) {
        self.emptied.clear();

        if self.written > MAX_WRITTEN {
            *self = Cache::default();
        }
    }

    /// Drops all rows of a table.
    pub fn forget(&mut self, table: Table) {
        match table {
            Table::UserAddon => self.addons.clear(),
            _ => drop(self.rows.remove(&table)),
        }

        if table == Table::TranscoderQueueFile {
            self.files.clear();
        }
    }

    /// Adds the add-ons that `users` have. Cached ones are newer and stay.
    pub fn addons_fetched(&mut self, users: &[String], found: &[UserAddon]) {
        let mut by_user: HashMap<&str, Addons> = HashMap::new();

        for UserAddon {
            user,
            addon,
            copies,
        } in found
        {
            *by_user
                .entry(user)
                .or_default()
                .entry(addon.as_str().into())
                .or_default() += copies;
        }

        for user in users {
            let id = UserId(user.as_str().into());
            if self.has_addons_of(&id) {
                continue;
            }

            let addons = if self.emptied.contains(&Table::UserAddon) {
                None
            } else {
                by_user.remove(user.as_str())
            };

            self.written += ENTRY_OVERHEAD * (1 + addons.as_ref().map_or(0, HashMap::len));
            self.addons.insert(id, addons.unwrap_or_default());
        }
    }

    /// Adds the rows that were found by `ids`. What is not among `found` does not exist. Cached
    /// rows are newer and stay.
    pub fn fetched(&mut self, table: Table, ids: &[i64], found: &[Tuple]) {
        for row in found {
            self.add_fetched(table, row);
        }

        for id in ids {
            if self.row(table, *id).is_none() {
                self.put_row(table, *id, None);
            }
        }
    }

    /// Adds all files of these entries. Cached files are newer and stay.
    pub fn files_fetched(&mut self, entries: &[i64], found: &[Tuple]) {
        const TABLE: Table = Table::TranscoderQueueFile;
        let mut of_entries: HashMap<i64, BTreeSet<i64>> = HashMap::new();

        for row in found {
            self.add_fetched(TABLE, row);
            let Some(id) = row.id() else { continue };

            // The row as of the current change may belong to another entry, or be gone.
            let parent = self
                .row(TABLE, id)
                .flatten()
                .and_then(|row| row.int(file::transcoder_queue_id));
            if let Some(parent) = parent {
                of_entries.entry(parent).or_default().insert(id);
            }
        }

        for entry in entries {
            if !self.has_files_of(*entry) {
                self.written += ENTRY_OVERHEAD;
                self.files
                    .insert(*entry, of_entries.remove(entry).unwrap_or_default());
            }
        }
    }

    /// Applies a change of a looked-up table, and adds what the store has to change to `changes`.
    pub fn follow(&mut self, change: &Change, changes: &mut LedgerChanges) {
        let table = change.table;
        if table == Table::UserAddon {
            self.follow_addon(&change.operation);
            return;
        }

        if table.looked_up().is_empty() {
            return;
        }

        match &change.operation {
            Operation::Insert { new } | Operation::Replace { new, .. } => {
                self.learn(table, new, changes)
            }
            Operation::Update { old, new } => {
                if let Some(old) = old.as_ref().filter(|old| old.id() != new.id()) {
                    self.remove(table, old, changes);
                }

                self.learn(table, new, changes);
            }
            Operation::Delete { old } => self.remove(table, old, changes),
            Operation::Truncate => {
                self.forget(table);
                self.emptied.insert(table);
                changes.empty(table);
            }
        }
    }

    fn follow_addon(&mut self, operation: &Operation) {
        if *operation == Operation::Truncate {
            self.forget(Table::UserAddon);
            self.emptied.insert(Table::UserAddon);
            return;
        }

        let (old, new) = AddonChange::of(operation);
        match old {
            AddonChange::None => {}
            AddonChange::One(user, addon) => {
                if let Some(addons) = self.addons.get_mut(&UserId(user.into())) {
                    let copies = addons.entry(addon.into()).or_default();
                    *copies -= 1;

                    if *copies <= 0 {
                        addons.remove(addon);
                    }
                }
            }
            AddonChange::All(user) => {
                self.addons.get_mut(&UserId(user.into())).map(Addons::clear);
            }
        }

        if let Some((user, addon)) = new
            && let Some(addons) = self.addons.get_mut(&UserId(user.into()))
        {
            self.written += ENTRY_OVERHEAD;
            *addons.entry(addon.into()).or_default() += 1;
        }
    }

    /// Adds a row of the stream. Values that were not sent keep their former value.
    fn learn(&mut self, table: Table, new: &Tuple, changes: &mut LedgerChanges) {
        let Some(id) = new.id() else { return };
        let known = self.row(table, id);
        let mut row = reduced(table, new);

        if let Some(Some(known)) = &known {
            row.fill_from(known);
        }

        if known
            .as_ref()
            .is_some_and(|known| known.as_deref() == Some(&row))
        {
            return;
        }

        let Some(state) = State::of_looked_up(table, &row) else {
            // Neither the stream nor the store has all values: the row is read again when it is
            // needed.
            self.rows.get_mut(&table).map(|rows| rows.remove(&id));
            return;
        };

        changes.put(table, id, state);
        self.put(table, id, Some(row));
    }

    /// Removes a file. Other rows stay: later events may refer to a release or a label that the
    /// platform has deleted.
    fn remove(&mut self, table: Table, old: &Tuple, changes: &mut LedgerChanges) {
        if let Some(id) = old.id().filter(|_| table == Table::TranscoderQueueFile) {
            changes.remove(table, id);
            self.put(table, id, None);
        }
    }

    /// Replaces a row, also in the lists of files.
    fn put(&mut self, table: Table, id: i64, row: Option<Tuple>) {
        if table == Table::TranscoderQueueFile {
            let parent =
                |row: Option<&Tuple>| row.and_then(|row| row.int(file::transcoder_queue_id));
            let before = parent(self.row(table, id).flatten().as_deref());
            let after = parent(row.as_ref());
            let files = before.filter(|_| before != after);
            files.and_then(|entry| self.files.get_mut(&entry)?.take(&id));

            if let Some(files) = after.and_then(|entry| self.files.get_mut(&entry)) {
                files.insert(id);
            }
        }

        self.put_row(table, id, row);
    }

    fn add_fetched(&mut self, table: Table, row: &Tuple) {
        let Some(id) = row.id() else { return };
        if self.row(table, id).is_none() {
            self.put_row(table, id, Some(reduced(table, row)));
        }
    }

    fn put_row(&mut self, table: Table, id: i64, row: Option<Tuple>) {
        self.written += ENTRY_OVERHEAD + row.as_ref().map_or(0, weight);
        self.rows
            .entry(table)
            .or_default()
            .insert(id, row.map(Arc::new));
    }
}

/// What a change of the table of add-ons takes from a user.
#[derive(Debug, PartialEq, Eq)]
pub enum AddonChange<'a> {
    None,
    One(&'a str, &'a str),
    /// It is unknown which add-on was revoked. Better too few add-ons than one that the user no
    /// longer has.
    All(&'a str),
}

impl<'a> AddonChange<'a> {
    /// Returns what an operation takes, and which add-on it then gives to which user. An update
    /// without an old row leaves both alone.
    pub fn of(operation: &'a Operation) -> (AddonChange<'a>, Option<(&'a str, &'a str)>) {
        let given = |row: &'a Tuple| {
            row.text(user_addon::user_id)
                .zip(row.text(user_addon::addon))
        };

        match operation {
            Operation::Insert { new } => (AddonChange::None, given(new)),
            // A replaced row follows its deletion.
            Operation::Replace { new, .. } => (AddonChange::None, given(new)),
            Operation::Update {
                old: Some(old),
                new,
            } => (AddonChange::taken(old), given(new)),
            Operation::Delete { old } => (AddonChange::taken(old), None),
            Operation::Update { old: None, .. } | Operation::Truncate => (AddonChange::None, None),
        }
    }

    fn taken(old: &'a Tuple) -> AddonChange<'a> {
        let Some(user) = old.text(user_addon::user_id) else {
            return AddonChange::None;
        };

        match old.get(user_addon::addon) {
            Datum::Text(addon) => AddonChange::One(user, addon),
            Datum::Absent => AddonChange::All(user),
            Datum::Null => AddonChange::None,
        }
    }
}

/// Returns the id and the looked-up columns of a row. Texts that are only shown are bounded, as in
/// the store.
fn reduced(table: Table, row: &Tuple) -> Tuple {
    let mut reduced = Tuple::absent(table);
    reduced.extra = row.extra.clone();

    for column in std::iter::once(crate::domain::table::ID).chain(table.looked_up_columns()) {
        let most = table.most_characters(table.columns()[usize::from(column.0)]);
        let value = match row.text(column).zip(most) {
            Some((text, most)) if text.len() > most => {
                Datum::text(text.chars().take(most).collect::<String>())
            }
            _ => row.get(column).clone(),
        };

        reduced.set(column, value);
    }

    reduced
}

/// How much memory a row takes, in bytes. An estimate.
fn weight(row: &Tuple) -> usize {
    let values = row
        .iter()
        .map(|(_, value)| size_of::<Datum>() + value.as_str().map_or(0, str::len));
    size_of::<Tuple>() + values.sum::<usize>() + row.extra.size()
}

/// Booleans are `t` in the stream and `true` in a query; a mapped column may contain a number.
fn is_true(text: &str) -> bool {
    matches!(text, "t" | "true" | "1" | "on" | "yes")
}

#[cfg(test)]
#[path = "../../tests/unit/lookup_cache.rs"]
mod tests;
