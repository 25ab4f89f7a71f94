//! The types of a rule: its inputs, its results, and how an event's data defines its catalogue
//! entry.

use std::fmt;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Serialize;

use super::value::{schema_of, to_json};
use crate::domain::change::Change;
use crate::domain::event::{Addon, EventKind, UserId};
use crate::domain::table::Table;

/// Facts about rows other than the changed one, as of the change's position in the stream.
pub trait Facts {
    fn release(&self, id: i64) -> Fact<Arc<Release>>;
    fn label_owner(&self, label: i64) -> Fact<Option<UserId>>;
    fn outlet_name(&self, outlet: i64) -> Fact<Option<Arc<str>>>;
    /// Returns the release that a track belongs to.
    fn track_release(&self, track: i64) -> Fact<i64>;
    /// Returns the files of a transcoder queue entry, ordered by their ids.
    fn transcoded_files(&self, entry: i64) -> Fact<Arc<[TranscodedFile]>>;
    fn has_addon(&self, user: &UserId, addon: Addon) -> Fact<bool>;
    /// Returns whether a distribution status is documented or configured.
    fn recognises_distribution_status(&self, status: &str) -> bool;
}

/// A value that a rule needs, or the reason why the rule raises no event.
pub type Fact<T> = Result<T, NoEvent>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub label_id: i64,
    pub cat: Option<String>,
    pub title: Option<String>,
    pub pre_review_hold: bool,
}

/// One file of a transcode, as `data` contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(description = "")]
pub struct TranscodedFile {
    /// The kind of asset.
    pub asset_type_id: i64,
    /// The status of the file.
    pub status: String,
}

/// Why a rule raises no event for a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoEvent {
    /// The change is not a transition that raises this event, or its owner lacks the add-on.
    NotApplicable,
    /// The transition leads to or from an undocumented value. Counted under this reason.
    Ignored { reason: &'static str, value: String },
    /// A row is not cached: fetch it and run the rule again.
    Lookup(LookupKey),
    /// The event occurred, but its owner cannot be determined, for this reason.
    Unrouted(&'static str),
    /// The event occurred, but a row that it needs cannot be read, for this reason.
    LookupFailed(String),
    /// The changed row does not match the reference schema, for example because an id is not an
    /// integer.
    Malformed(String),
}

impl NoEvent {
    /// The transition involves a value that is not known.
    pub(super) fn ignored(reason: &'static str, value: Option<&str>) -> NoEvent {
        NoEvent::Ignored {
            reason,
            value: value.unwrap_or("null").to_owned(),
        }
    }
}

/// The row that a rule needs and that is not cached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LookupKey {
    /// The changed row itself: the WAL omits a long value (TOAST) that the update left unchanged.
    Row(Table, i64),
    Release(i64),
    Label(i64),
    Outlet(i64),
    Track(i64),
    Files(i64),
    Addons(UserId),
}

impl fmt::Display for LookupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LookupKey::Row(table, id) => write!(f, "{} {id}", table.name()),
            LookupKey::Release(id) => write!(f, "release {id}"),
            LookupKey::Label(id) => write!(f, "label {id}"),
            LookupKey::Outlet(id) => write!(f, "outlet {id}"),
            LookupKey::Track(id) => write!(f, "track {id}"),
            LookupKey::Files(id) => write!(f, "files of transcoder_queue {id}"),
            LookupKey::Addons(user) => write!(f, "add-ons of user {user}"),
        }
    }
}

/// What a rule derives from a change: the event's owner and data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Derived {
    pub owner: UserId,
    /// The label that the event is about. A payment statement has none.
    pub label: Option<i64>,
    /// The `data` object as JSON.
    pub data: String,
    /// The release for which this event is raised at most once, ever.
    pub once_for_release: Option<i64>,
}

/// The user who receives an event, and the label through which they own it.
pub(super) struct Owner {
    pub user: UserId,
    /// None if the changed row names the user.
    pub label: Option<i64>,
}

/// The `data` of one event. Its fields define the JSON Schema, its constants the catalogue entry,
/// and `derive` the rule.
pub(super) trait EventData: Serialize + JsonSchema + Sized {
    const KIND: EventKind;
    const DESCRIPTION: &'static str;
    const REQUIRES_ADDON: Option<Addon> = None;
    const TABLE: Table;
    /// The data that the documentation shows and that test deliveries send, as JSON.
    const EXAMPLE: &'static str;

    /// Derives the owner and the data from a change of [`Self::TABLE`].
    fn derive(change: &Change, facts: &dyn Facts) -> Result<(Owner, Self), NoEvent>;

    /// Returns the release for which this event is raised at most once, ever.
    fn once_for_release(&self) -> Option<i64> {
        None
    }
}

/// An entry of the catalogue: one event, its schema, and the rule that derives it.
pub struct Rule {
    pub kind: EventKind,
    pub description: &'static str,
    pub requires_addon: Option<Addon>,
    /// The one table whose changes can raise the event.
    pub table: Table,
    pub derive: fn(&Change, &dyn Facts) -> Result<Derived, NoEvent>,
    /// Returns the JSON Schema (2020-12) of `data`.
    pub schema: fn() -> serde_json::Value,
    /// Returns an instance of the schema, as JSON text.
    pub example: fn() -> String,
}

impl Rule {
    pub(super) const fn of<T: EventData>() -> Rule {
        Rule {
            kind: T::KIND,
            description: T::DESCRIPTION,
            requires_addon: T::REQUIRES_ADDON,
            table: T::TABLE,
            derive: |change, facts| {
                let (Owner { user, label }, data) = T::derive(change, facts)?;
                let once_for_release = data.once_for_release();
                Ok(Derived {
                    owner: user,
                    label,
                    data: to_json(&data),
                    once_for_release,
                })
            },
            schema: schema_of::<T>,
            example: || T::EXAMPLE.to_owned(),
        }
    }
}
