//! The cache of looked-up rows. `None` means "unknown: fetch it"; `Some(None)` means "does not exist".

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use crate::domain::change::{Datum, Tuple};
use crate::domain::event::{Addon, UserId};
use crate::domain::table::{
    Table, label, outlet, release, track, transcoder_queue, transcoder_queue_file as file, user_addon,
};
use crate::events::{Release, TranscodedFile};
use crate::weighted_lru::WeightedLru;

/// Bounds the memory of the rows of one table between batches: enough for tens of thousands. During a batch all rows stay that it needs.
const MAX_WEIGHT: usize = 8 << 20;
/// The estimated size of an entry of the map, in bytes, without what its key and its value refer to.
const ENTRY_OVERHEAD: usize = 128;

/// The rows of a table. Reading changes the order of entries, and needs only a shared reference.
struct Rows<K: Hash + Eq, V>(RefCell<WeightedLru<K, V>>);

impl<K: Hash + Eq + Weigh, V: Weigh> Rows<K, V> {
    fn get(&self, key: &K) -> Option<V>
    where
        V: Clone,
    {
        self.0.borrow_mut().get(key).cloned()
    }

    fn with<T>(&self, key: &K, read: impl FnOnce(&V) -> T) -> Option<T> {
        self.0.borrow_mut().get(key).map(read)
    }

    fn put(&mut self, key: K, value: V) {
        let weight = ENTRY_OVERHEAD + key.weight() + value.weight();
        self.0.get_mut().put(key, value, weight);
    }

    /// Changes a value, if it is cached.
    fn change(&mut self, key: &K, change: impl FnOnce(&mut V)) {
        self.0.get_mut().change(key, |value| {
            change(value);
            ENTRY_OVERHEAD + key.weight() + value.weight()
        });
    }

    fn remove(&mut self, key: &K) {
        self.0.get_mut().remove(key);
    }

    fn trim(&mut self) {
        while self.0.get_mut().remove_beyond(MAX_WEIGHT).is_some() {}
    }
}

impl<K: Hash + Eq, V> Default for Rows<K, V> {
    fn default() -> Self {
        Rows(RefCell::default())
    }
}

/// How much memory a value takes outside of itself, in bytes. An estimate.
trait Weigh {
    fn weight(&self) -> usize;
}

impl Weigh for i64 {
    fn weight(&self) -> usize {
        0
    }
}

impl Weigh for UserId {
    fn weight(&self) -> usize {
        self.0.len()
    }
}

impl Weigh for Arc<str> {
    fn weight(&self) -> usize {
        self.len()
    }
}

impl Weigh for Arc<Release> {
    fn weight(&self) -> usize {
        let texts = [&self.cat, &self.title].into_iter().flatten();
        size_of::<Release>() + texts.map(String::len).sum::<usize>()
    }
}

impl<T: Weigh> Weigh for Option<T> {
    fn weight(&self) -> usize {
        self.as_ref().map_or(0, T::weight)
    }
}

impl Weigh for HashSet<Box<str>> {
    fn weight(&self) -> usize {
        self.iter().map(|text| size_of::<Box<str>>() + text.len()).sum()
    }
}

/// The files of one transcoder queue entry.
#[derive(Clone, Default)]
struct Files {
    /// Whether all files of the entry are known: the stream has shown its insertion, or its files were fetched.
    complete: bool,
    /// Files by id, as the stream shows them. `None` for a deleted file.
    shown: BTreeMap<i64, Option<TranscodedFile>>,
    /// The length of all statuses.
    status_bytes: usize,
}

impl Files {
    fn show(&mut self, id: i64, file: Option<TranscodedFile>) {
        let length = |file: &Option<TranscodedFile>| file.as_ref().map_or(0, |file| file.status.len());
        self.status_bytes += length(&file);
        self.status_bytes -= self.shown.insert(id, file).as_ref().map_or(0, length);
    }
}

impl Weigh for Files {
    /// A node of the map has a capacity of eleven files.
    fn weight(&self) -> usize {
        self.shown.len().next_multiple_of(11) * size_of::<(i64, Option<TranscodedFile>)>() + self.status_bytes
    }
}

#[derive(Default)]
pub struct Cache {
    releases: Rows<i64, Option<Arc<Release>>>,
    labels: Rows<i64, Option<Option<UserId>>>,
    outlets: Rows<i64, Option<Arc<str>>>,
    tracks: Rows<i64, Option<i64>>,
    files: Rows<i64, Files>,
    addons: Rows<UserId, HashSet<Box<str>>>,
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
        self.files.with(&entry, |files| files.complete.then(|| files.shown.values().flatten().cloned().collect()))?
    }

    pub fn has_addon(&self, user: &UserId, addon: Addon) -> Option<bool> {
        let known = self.addons.with(user, |addons| addons.contains(addon.as_str()));
        known.or_else(|| self.addons_emptied.then_some(false))
    }

    /// Starts a batch. All earlier ones are stored.
    pub fn begin(&mut self) {
        self.addons_emptied = false;
        self.releases.trim();
        self.labels.trim();
        self.outlets.trim();
        self.tracks.trim();
        self.files.trim();
        self.addons.trim();
    }

    /// Adds the add-ons that the store has for `users`. Cached ones are newer and stay.
    pub fn addons_stored(&mut self, users: &[String], found: &[(String, String)]) {
        for user in users {
            let id = UserId(user.as_str().into());
            if self.addons.with(&id, |_| ()).is_none() && !self.addons_emptied {
                let of_user = found.iter().filter(|(owner, _)| owner == user);
                self.addons.put(id, of_user.map(|(_, addon)| addon.as_str().into()).collect());
            }
        }
    }

    /// Starts to collect the files of a new transcoder queue entry: the stream will show all of them.
    pub fn entry_inserted(&mut self, entry: &Tuple) {
        if let Some(id) = int(entry, transcoder_queue::id) {
            self.files.put(id, Files { complete: true, ..Files::default() });
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
                self.addons.change(&user, |addons| {
                    addons.insert(addon);
                });
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
                self.change_files(entry, |files| files.show(id, None));
            }
            Table::UserAddon => {
                let Some(user) = old.text(user_addon::user_id) else { return };
                self.addons.change(&UserId(user.into()), |addons| match old.get(user_addon::addon) {
                    Datum::Text(addon) => drop(addons.remove(addon)),
                    Datum::Absent => addons.clear(),
                    Datum::Null => {}
                });
            }
            _ => {}
        }
    }

    /// Drops all rows of a table.
    pub fn forget(&mut self, table: Table) {
        match table {
            Table::Release => self.releases = Rows::default(),
            Table::Label => self.labels = Rows::default(),
            Table::Outlet => self.outlets = Rows::default(),
            Table::Track => self.tracks = Rows::default(),
            Table::TranscoderQueueFile | Table::TranscoderQueue => self.files = Rows::default(),
            Table::UserAddon => self.addons = Rows::default(),
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
                (Table::TranscoderQueueFile, Ok(id)) => self.change_files(id, |files| files.complete = true),
                (Table::UserAddon, _) => self.addons.put(UserId(key.as_str().into()), HashSet::new()),
                _ => {}
            }
        }
        for row in rows {
            // The stream has shown the file as of the current change; the fetched row may be newer.
            let shown = table == Table::TranscoderQueueFile
                && int(row, file::transcoder_queue_id)
                    .zip(int(row, file::id))
                    .and_then(|(entry, id)| self.files.with(&entry, |files| files.shown.contains_key(&id)))
                    .unwrap_or(false);
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
        self.change_files(entry, |files| files.show(id, Some(TranscodedFile { asset_type_id, status })));
    }

    fn change_files(&mut self, entry: i64, change: impl FnOnce(&mut Files)) {
        if self.files.with(&entry, |_| ()).is_none() {
            self.files.put(entry, Files::default());
        }
        self.files.change(&entry, change);
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
    fn between_batches_rows_are_bounded_by_their_size() {
        let mut cache = Cache::default();
        let known = |cache: &Cache| (1..=20).filter(|id| cache.release(*id).is_some()).collect::<Vec<_>>();
        for id in 1..=20 {
            let mut release = release(Datum::text("7"), Datum::text("x".repeat(1 << 20)), Datum::text("f"));
            release.set(release::id, Datum::text(id.to_string()));
            cache.learn(Table::Release, &release);
        }
        assert_eq!(known(&cache).len(), 20, "a batch keeps all rows that it needs");
        cache.begin();
        assert_eq!(known(&cache), (14..=20).collect::<Vec<_>>());
    }

    #[test]
    fn files_are_bounded_too_and_weigh_what_they_contain() {
        let mut files = Files::default();
        let file = |status: &str| Some(TranscodedFile { asset_type_id: 1, status: status.to_owned() });
        files.show(1, file("queued"));
        files.show(1, file("complete"));
        files.show(2, file("error"));
        files.show(2, None);
        assert_eq!(files.status_bytes, "complete".len());
        let mut cache = Cache::default();
        let count = (2 * MAX_WEIGHT / ENTRY_OVERHEAD) as i64;
        for entry in 0..count {
            cache.change_files(entry, |files| files.show(1, None));
        }
        cache.begin();
        assert!(cache.files.with(&0, |_| ()).is_none() && cache.files.with(&(count - 1), |_| ()).is_some());
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
