//! The cache of looked-up rows. `None` means "unknown: fetch it"; `Some(None)` means "does not exist".

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;

use crate::domain::change::{Datum, Tuple};
use crate::domain::event::{Addon, UserId};
use crate::domain::table::{
    Table, label, outlet, release, track, transcoder_queue, transcoder_queue_file as file, user_addon,
};
use crate::events::{Release, TranscodedFile};

/// Maximum number of cached rows per table.
const CAPACITY: NonZeroUsize = NonZeroUsize::new(50_000).expect("not zero");

/// An LRU map. Reading changes the order of entries, and needs only a shared reference.
struct Lru<K: Hash + Eq, V>(RefCell<LruCache<K, V>>);

impl<K: Hash + Eq, V: Clone> Lru<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.0.borrow_mut().get(key).cloned()
    }

    fn put(&mut self, key: K, value: V) {
        self.0.get_mut().put(key, value);
    }

    fn remove(&mut self, key: &K) {
        self.0.get_mut().pop(key);
    }
}

impl<K: Hash + Eq, V> Default for Lru<K, V> {
    fn default() -> Self {
        Lru(RefCell::new(LruCache::new(CAPACITY)))
    }
}

/// The files of one transcoder queue entry.
#[derive(Clone, Default)]
struct Files {
    /// Whether all files of the entry are known: the stream has shown its insertion, or its files were fetched.
    complete: bool,
    /// Files by id, as the stream shows them. `None` for a deleted file.
    shown: BTreeMap<i64, Option<TranscodedFile>>,
}

#[derive(Default)]
pub struct Cache {
    releases: Lru<i64, Option<Arc<Release>>>,
    labels: Lru<i64, Option<Option<UserId>>>,
    outlets: Lru<i64, Option<Arc<str>>>,
    tracks: Lru<i64, Option<i64>>,
    files: Lru<i64, Files>,
    addons: Lru<UserId, HashSet<Box<str>>>,
    /// The batch has truncated the table of add-ons. Until it is stored, the store still has the former ones.
    addons_emptied: bool,
}

impl Cache {
    pub fn release(&self, id: i64) -> Option<Option<Arc<Release>>> {
        self.releases.get(&id)
    }

    pub fn label_owner(&self, id: i64) -> Option<Option<Option<UserId>>> {
        self.labels.get(&id)
    }

    pub fn outlet_name(&self, id: i64) -> Option<Option<Arc<str>>> {
        self.outlets.get(&id)
    }

    pub fn track_release(&self, id: i64) -> Option<Option<i64>> {
        self.tracks.get(&id)
    }

    pub fn files(&self, entry: i64) -> Option<Arc<[TranscodedFile]>> {
        let files = self.files.get(&entry).filter(|files| files.complete)?;
        Some(files.shown.into_values().flatten().collect())
    }

    pub fn has_addon(&self, user: &UserId, addon: Addon) -> Option<bool> {
        let known = self.addons.0.borrow_mut().get(user).map(|addons| addons.contains(addon.as_str()));
        known.or_else(|| self.addons_emptied.then_some(false))
    }

    /// Starts a batch. All earlier ones are stored.
    pub fn begin(&mut self) {
        self.addons_emptied = false;
    }

    /// Adds the add-ons that the store has for `users`. Cached ones are newer and stay.
    pub fn addons_stored(&mut self, users: &[String], found: &[(String, String)]) {
        for user in users {
            let id = UserId(user.as_str().into());
            if self.addons.get(&id).is_none() && !self.addons_emptied {
                let of_user = found.iter().filter(|(owner, _)| owner == user);
                self.addons.put(id, of_user.map(|(_, addon)| addon.as_str().into()).collect());
            }
        }
    }

    /// Starts to collect the files of a new transcoder queue entry: the stream will show all of them.
    pub fn entry_inserted(&mut self, entry: &Tuple) {
        if let Some(id) = int(entry, transcoder_queue::id) {
            self.files.put(id, Files { complete: true, shown: BTreeMap::new() });
        }
    }

    /// Adds a row. Values that were not sent keep their cached value, if there is one.
    pub fn learn(&mut self, table: Table, row: &Tuple) {
        match table {
            Table::Release => self.learn_release(row),
            Table::Label => {
                let Some(id) = int(row, label::id) else { return };
                match row.get(label::user_id) {
                    Datum::Absent => {}
                    user => self.labels.put(id, Some(user.as_str().map(|user| UserId(user.into())))),
                }
            }
            Table::Outlet => {
                let Some(id) = int(row, outlet::id) else { return };
                match row.get(outlet::name) {
                    Datum::Absent => {}
                    name => self.outlets.put(id, name.as_str().map(Arc::from)),
                }
            }
            Table::Track => {
                let Some(id) = int(row, track::id) else { return };
                match row.get(track::release_id) {
                    Datum::Absent => {}
                    _ => self.tracks.put(id, int(row, track::release_id)),
                }
            }
            Table::TranscoderQueueFile => self.learn_file(row),
            Table::UserAddon => {
                let Some((user, addon)) = addon_of(row) else { return };
                if let Some(addons) = self.addons.0.get_mut().get_mut(&user) {
                    addons.insert(addon);
                }
            }
            Table::DistroQueue
            | Table::TranscoderQueue
            | Table::Payment
            | Table::PreflightReport
            | Table::StreamRadarFlag
            | Table::AppUser => {}
        }
    }

    /// Applies an update.
    pub fn update(&mut self, table: Table, old: Option<&Tuple>, new: &Tuple) {
        // An old row means that the key has changed: the row moved.
        if let Some(old) = old.filter(|_| matches!(table, Table::UserAddon | Table::TranscoderQueueFile)) {
            self.delete(table, old);
        }
        self.learn(table, new);
    }

    /// Applies a deletion. Releases, labels, outlets and tracks stay cached, so that their earlier changes can still be routed.
    pub fn delete(&mut self, table: Table, old: &Tuple) {
        match table {
            Table::TranscoderQueueFile => {
                let (Some(id), Some(entry)) = (int(old, file::id), int(old, file::transcoder_queue_id)) else {
                    // Without the entry's id, it is unknown whose file this was.
                    self.forget(table);
                    return;
                };
                self.files_of(entry).shown.insert(id, None);
            }
            Table::UserAddon => {
                let Some(user) = old.text(user_addon::user_id) else { return };
                let Some(addons) = self.addons.0.get_mut().get_mut(&UserId(user.into())) else { return };
                match old.get(user_addon::addon) {
                    Datum::Text(addon) => drop(addons.remove(addon)),
                    Datum::Absent => addons.clear(),
                    Datum::Null => {}
                }
            }
            _ => {}
        }
    }

    /// Drops all rows of a table.
    pub fn forget(&mut self, table: Table) {
        match table {
            Table::Release => self.releases = Lru::default(),
            Table::Label => self.labels = Lru::default(),
            Table::Outlet => self.outlets = Lru::default(),
            Table::Track => self.tracks = Lru::default(),
            Table::TranscoderQueueFile | Table::TranscoderQueue => self.files = Lru::default(),
            Table::UserAddon => self.addons = Lru::default(),
            _ => {}
        }
    }

    /// Applies a truncation. Releases, labels, outlets and tracks may be fetched again.
    pub fn truncated(&mut self, table: Table) {
        self.forget(table);
        self.addons_emptied |= table == Table::UserAddon;
    }

    /// Adds the result of fetching `keys`. What is not among `rows` does not exist.
    pub fn fetched(&mut self, table: Table, keys: &[String], rows: &[Tuple]) {
        for key in keys {
            match (table, key.parse::<i64>()) {
                (Table::Release, Ok(id)) => self.releases.put(id, None),
                (Table::Label, Ok(id)) => self.labels.put(id, None),
                (Table::Outlet, Ok(id)) => self.outlets.put(id, None),
                (Table::Track, Ok(id)) => self.tracks.put(id, None),
                (Table::TranscoderQueueFile, Ok(id)) => self.files_of(id).complete = true,
                (Table::UserAddon, _) => self.addons.put(UserId(key.as_str().into()), HashSet::new()),
                _ => {}
            }
        }
        for row in rows {
            // The stream has shown the file as of the current change; the fetched row may be newer.
            let shown = table == Table::TranscoderQueueFile
                && int(row, file::transcoder_queue_id)
                    .zip(int(row, file::id))
                    .is_some_and(|(entry, id)| self.files_of(entry).shown.contains_key(&id));
            if !shown {
                self.learn(table, row);
            }
        }
    }

    fn learn_release(&mut self, row: &Tuple) {
        let Some(id) = int(row, release::id) else { return };
        let known = self.releases.get(&id).flatten();
        let known = known.as_deref();
        let text = |column, old: fn(&Release) -> &Option<String>| match row.get(column) {
            Datum::Absent => known.map(|known| old(known).clone()),
            value => Some(value.as_str().map(str::to_owned)),
        };
        let label_id = match row.get(release::label_id) {
            Datum::Absent => known.map(|known| known.label_id),
            // A release without a label has no owner, not even its former one.
            _ => match int(row, release::label_id) {
                None => return self.releases.put(id, None),
                label_id => label_id,
            },
        };
        let pre_review_hold = match row.get(release::pre_review_hold) {
            Datum::Absent => known.map(|known| known.pre_review_hold),
            value => Some(value.as_str().is_some_and(is_true)),
        };
        let (cat, title) = (text(release::cat, |known| &known.cat), text(release::title, |known| &known.title));
        if let (Some(label_id), Some(cat), Some(title), Some(pre_review_hold)) = (label_id, cat, title, pre_review_hold)
        {
            self.releases.put(id, Some(Arc::new(Release { label_id, cat, title, pre_review_hold })));
        }
    }

    fn learn_file(&mut self, row: &Tuple) {
        let (Some(id), Some(entry)) = (int(row, file::id), int(row, file::transcoder_queue_id)) else { return };
        let asset_type_id = int(row, file::asset_type_id).unwrap_or_default();
        if *row.get(file::status) == Datum::Absent {
            // The status is unknown: fetch all of the entry's files again.
            self.files.remove(&entry);
            return;
        }
        let status = row.text(file::status).unwrap_or_default().to_owned();
        self.files_of(entry).shown.insert(id, Some(TranscodedFile { asset_type_id, status }));
    }

    fn files_of(&mut self, entry: i64) -> &mut Files {
        self.files.0.get_mut().get_or_insert_mut(entry, Files::default)
    }
}

fn int(row: &Tuple, column: crate::domain::table::Column) -> Option<i64> {
    row.text(column)?.parse().ok()
}

pub fn addon_of(row: &Tuple) -> Option<(UserId, Box<str>)> {
    let user = row.text(user_addon::user_id)?;
    Some((UserId(user.into()), row.text(user_addon::addon)?.into()))
}

/// Booleans are `t` in the stream and `true` in a query; a mapped column may contain a number.
fn is_true(text: &str) -> bool {
    matches!(text, "t" | "true" | "1" | "on" | "yes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(table: Table, values: &[(&str, Datum)]) -> Tuple {
        let mut row = Tuple::absent(table);
        for (name, value) in values {
            row.set(table.column(name).expect("a column"), value.clone());
        }
        row
    }

    fn release(label: Datum, title: Datum, hold: Datum) -> Tuple {
        let values = [
            ("id", Datum::text("1")),
            ("label_id", label),
            ("cat", Datum::Null),
            ("title", title),
            ("pre_review_hold", hold),
        ];
        row(Table::Release, &values)
    }

    #[test]
    fn values_of_a_release_that_were_not_sent_keep_their_cached_value() {
        let mut cache = Cache::default();
        cache.learn(Table::Release, &release(Datum::Absent, Datum::text("a"), Datum::text("t")));
        assert!(cache.release(1).is_none(), "its label is unknown");
        cache.learn(Table::Release, &release(Datum::text("7"), Datum::text("a"), Datum::text("t")));
        cache.learn(Table::Release, &release(Datum::Absent, Datum::text("b"), Datum::Absent));
        let known = cache.release(1).flatten().expect("known");
        assert_eq!((known.label_id, known.title.as_deref(), known.pre_review_hold), (7, Some("b"), true));
    }

    #[test]
    fn a_release_without_a_label_has_no_owner() {
        let mut cache = Cache::default();
        cache.learn(Table::Release, &release(Datum::text("7"), Datum::Null, Datum::text("f")));
        cache.learn(Table::Release, &release(Datum::Null, Datum::Null, Datum::text("f")));
        assert_eq!(cache.release(1).map(|known| known.is_none()), Some(true));
    }

    #[test]
    fn values_of_other_rows_that_were_not_sent_change_nothing() {
        let mut cache = Cache::default();
        let id = || ("id", Datum::text("1"));
        for (table, column) in [(Table::Label, "user_id"), (Table::Outlet, "name"), (Table::Track, "release_id")] {
            cache.learn(table, &row(table, &[id(), (column, Datum::Absent)]));
        }
        assert!(cache.label_owner(1).is_none() && cache.outlet_name(1).is_none() && cache.track_release(1).is_none());
        cache.learn(Table::Track, &row(Table::Track, &[id(), ("release_id", Datum::text("5"))]));
        cache.learn(Table::Track, &row(Table::Track, &[id(), ("release_id", Datum::Absent)]));
        assert_eq!(cache.track_release(1), Some(Some(5)));
    }
}
