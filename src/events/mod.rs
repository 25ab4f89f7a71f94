//! The catalogue: which transition of which row raises which event, with what data.
//!
//! One file a family. Each rule is pure: it is shown one change and may ask [`Facts`] for rows of other tables. What is
//! not at hand ends the rule with [`Halt::Lookup`]; the caller fetches it and asks again.

mod distribution;
mod payment;
mod preflight;
#[cfg(test)]
mod properties;
mod release;
mod row;
mod stream_radar;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transcode;
mod value;

use std::sync::Arc;

use serde::Serialize;

use crate::domain::change::Change;
use crate::domain::event::{Addon, EventKind, UserId};
use crate::domain::table::Table;

/// What a rule may know beside the change itself, as of the change's place in the stream.
pub trait Facts {
    fn release(&self, id: i64) -> Fact<Arc<Release>>;
    fn label_owner(&self, label: i64) -> Fact<Option<UserId>>;
    fn outlet_name(&self, outlet: i64) -> Fact<Option<Arc<str>>>;
    /// The release that a track belongs to.
    fn track_release(&self, track: i64) -> Fact<i64>;
    /// The files of a transcoder queue entry, by id.
    fn transcoded_files(&self, entry: i64) -> Fact<Arc<[TranscodedFile]>>;
    fn has_addon(&self, user: &UserId, addon: Addon) -> Fact<bool>;
    /// Whether a distribution status is one of the documented or configured ones.
    fn recognises_distribution_status(&self, status: &str) -> bool;
}

pub type Fact<T> = Result<T, Halt>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub label_id: i64,
    pub cat: Option<String>,
    pub title: Option<String>,
    pub pre_review_hold: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TranscodedFile {
    pub asset_type_id: i64,
    pub status: String,
}

/// Why a rule could not come to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// A row that is not at hand: fetch it and ask again.
    Lookup(LookupKey),
    /// The event happened and nobody can be told: no owner can be found.
    Unrouted(&'static str),
    /// The change's own row is not what the reference schema promises, such as an id that is no number.
    Malformed(String),
}

/// What to fetch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LookupKey {
    /// The changed row itself: it has a long value that did not change, and such are not in the log.
    Row(Table, i64),
    Release(i64),
    Label(i64),
    Outlet(i64),
    Track(i64),
    Files(i64),
    Addons(UserId),
}

/// What one rule makes of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Nothing,
    /// A transition that would be an event but for a value nobody defined; counted under the reason.
    Ignored(&'static str),
    Raise(Derived),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    pub owner: UserId,
    /// The `data` object as JSON.
    pub data: String,
    /// Raised at most once for this release, ever.
    pub once_for_release: Option<i64>,
}

impl Derived {
    fn new<T: Serialize>(owner: UserId, data: &T) -> Self {
        Derived { owner, data: value::to_json(data), once_for_release: None }
    }
}

/// One event of the catalogue: what it is called, what its data looks like, and what raises it.
pub struct Rule {
    pub kind: EventKind,
    pub description: &'static str,
    pub requires_addon: Option<Addon>,
    /// The one table whose changes can raise it.
    pub table: Table,
    pub derive: fn(&Change, &dyn Facts) -> Result<Verdict, Halt>,
    /// The JSON Schema (2020-12) of `data`.
    pub schema: fn() -> serde_json::Value,
    /// An instance of the schema, as JSON text.
    pub example: fn() -> String,
}

/// Every event, in [`EventKind::ALL`]'s order.
pub static CATALOGUE: [&Rule; EventKind::ALL.len()] = [
    &distribution::DELIVERY_COMPLETED,
    &distribution::DELIVERY_FAILED,
    &distribution::TAKEDOWN_COMPLETED,
    &release::REVIEW_STATUS_CHANGED,
    &preflight::REPORT_READY,
    &stream_radar::FLAG_CREATED,
    &stream_radar::FLAG_RESOLVED,
    &release::RELEASE_DISTRIBUTED,
    &payment::STATEMENT_READY,
    &transcode::TRANSCODE_COMPLETED,
    &transcode::TRANSCODE_FAILED,
    &distribution::OUTLET_STATUS_CHANGED,
];

pub fn rule(kind: EventKind) -> &'static Rule {
    CATALOGUE[kind as usize]
}

/// The rules that changes of `table` can set off.
pub fn rules_for(table: Table) -> impl Iterator<Item = &'static Rule> {
    CATALOGUE.iter().copied().filter(move |rule| rule.table == table)
}
