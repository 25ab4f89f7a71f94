//! Rows of the primary that events need beside the changed one: labels and their owners, releases, outlets, tracks, add-ons.
//!
//! Fetched in batches when first needed, then kept right by the stream itself, which carries these tables too. So a fact is
//! never older than the change it is asked for; it may be newer while capture lags behind.

mod cache;
mod fetch;

use std::collections::HashSet;

use crate::config;
use crate::domain::change::{Change, Operation};
use crate::domain::event::{Addon, UserId};
use crate::domain::table::{Table, distro_queue};
use crate::events::{Fact, Facts, Halt, LookupKey, Release, TranscodedFile};

pub use fetch::LookupError;

use cache::Cache;
use fetch::Primary;

/// Distribution statuses that everybody knows; the configuration can add to them.
const DISTRIBUTION_STATUSES: [&str; 8] =
    ["scheduled", "transcoding", "batched", "complete", "error", "fault", "rejected", "batch_exception"];

pub struct Lookups {
    primary: Primary,
    cache: Cache,
    distribution_statuses: HashSet<String>,
    /// Tables found by SQL of the platform's own: the stream does not show them, so nothing of theirs is kept.
    uncached: Vec<Table>,
}

impl Lookups {
    pub fn new(url: &str, source: &config::Source) -> Lookups {
        let configured = source.distribution_statuses.iter().map(String::as_str);
        let mapped = source.tables.meanings(Table::DistroQueue, column_name(Table::DistroQueue, distro_queue::status));
        let known = DISTRIBUTION_STATUSES.into_iter().chain(configured).chain(mapped);
        Lookups {
            primary: Primary::new(url, source),
            cache: Cache::default(),
            distribution_statuses: known.map(str::to_owned).collect(),
            uncached: source.lookups.keys().filter_map(|name| Table::by_name(name)).collect(),
        }
    }

    /// Follows the stream by one change.
    pub fn follow(&mut self, change: &Change) {
        match &change.operation {
            Operation::Insert { new } => {
                if change.table == Table::TranscoderQueue {
                    self.cache.entry_begins(new);
                }
                self.cache.learn(change.table, new);
            }
            Operation::Update { old, new } => self.cache.update(change.table, old.as_ref(), new),
            Operation::Delete { old } => self.cache.delete(change.table, old),
            Operation::Truncate => self.cache.truncate(change.table),
        }
    }

    /// Forgets what the stream cannot keep right. To be called between batches.
    pub fn forget_unpublished(&mut self) {
        for table in &self.uncached {
            self.cache.truncate(*table);
        }
    }

    /// Fetches all of `keys`; afterwards each is known, if only to be absent. Waits until the primary shows `transaction`.
    pub async fn fetch(&mut self, keys: &HashSet<LookupKey>, transaction: Option<u32>) -> Result<(), LookupError> {
        if let Some(transaction) = transaction {
            self.primary.wait_until_visible(transaction).await?;
        }
        for (table, wanted) in by_table(keys) {
            let rows = self.primary.rows(table, &wanted).await?;
            self.cache.fetched(table, &wanted, &rows);
        }
        Ok(())
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
        };
        match asked.iter_mut().find(|(asked, _)| *asked == table) {
            Some((_, keys)) => keys.push(key),
            None => asked.push((table, vec![key])),
        }
    }
    asked
}
