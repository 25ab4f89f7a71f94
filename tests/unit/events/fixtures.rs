//! Fixtures for the tests of the rules: facts about two tenants, and constructors of rows and
//! changes.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::Arc;

use jsonschema::Validator;
use serde_json::Value;

use super::super::{Derived, Fact, Facts, LookupKey, NoEvent, Release, Rule, TranscodedFile, rule};
use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::event::{Addon, EventKind, UserId};
use crate::domain::lsn::Lsn;
use crate::domain::position::Position;
use crate::domain::table::Table;

const RECOGNISED: [&str; 8] = [
    "scheduled",
    "transcoding",
    "batched",
    "complete",
    "error",
    "fault",
    "rejected",
    "batch_exception",
];

/// Facts about two tenants. The ids of alice's rows begin with 1, those of bob's with 2. Label 3
/// and its releases have no user.
///
/// Like a cold cache, it returns a fact only after a lookup for it was requested.
#[derive(Default)]
pub struct FakeFacts {
    fetched: RefCell<HashSet<LookupKey>>,
    pub without_addons: Cell<bool>,
}

impl FakeFacts {
    fn fetch(&self, key: LookupKey) -> Fact<()> {
        if self.fetched.borrow().contains(&key) {
            Ok(())
        } else {
            Err(NoEvent::Lookup(key))
        }
    }

    /// Returns the number of rows looked up so far.
    pub fn lookups(&self) -> usize {
        self.fetched.borrow().len()
    }

    /// Runs the rule again after each lookup until it returns an event or another reason.
    pub fn derive(&self, kind: EventKind, change: &Change) -> Result<Derived, NoEvent> {
        loop {
            match (rule(kind).derive)(change, self) {
                // The changed row itself is not part of these facts.
                end @ Err(NoEvent::Lookup(LookupKey::Row(..))) => return end,
                Err(NoEvent::Lookup(key)) => {
                    assert!(
                        self.fetched.borrow_mut().insert(key.clone()),
                        "{key:?} was looked up twice"
                    );
                }
                end => return end,
            }
        }
    }

    /// Returns the event that the rule must raise, after checking its data against the schema.
    pub fn raised(&self, kind: EventKind, change: &Change) -> Derived {
        match self.derive(kind, change) {
            Ok(derived) => {
                assert_valid(&validator(rule(kind)), &derived.data);
                derived
            }
            other => panic!("{kind} not raised: {other:?}"),
        }
    }
}

impl Facts for FakeFacts {
    fn release(&self, id: i64) -> Fact<Arc<Release>> {
        self.fetch(LookupKey::Release(id))?;

        let (label_id, bare) = match id {
            10 => (1, false),
            11 => (1, true),
            20 => (2, false),
            30 => (3, false),
            _ => return Err(NoEvent::Unrouted("release_not_found")),
        };

        Ok(Arc::new(Release {
            label_id,
            cat: (!bare).then(|| format!("CAT-{id}")),
            title: (!bare).then(|| format!("Title {id}")),
            pre_review_hold: !bare,
        }))
    }

    fn label_owner(&self, label: i64) -> Fact<Option<UserId>> {
        self.fetch(LookupKey::Label(label))?;

        match label {
            1 => Ok(Some(user("alice"))),
            2 => Ok(Some(user("bob"))),
            3 => Ok(None),
            _ => Err(NoEvent::Unrouted("label_not_found")),
        }
    }

    fn outlet_name(&self, outlet: i64) -> Fact<Option<Arc<str>>> {
        self.fetch(LookupKey::Outlet(outlet))?;
        Ok((outlet == 5).then(|| "Example Music".into()))
    }

    fn track_release(&self, track: i64) -> Fact<i64> {
        self.fetch(LookupKey::Track(track))?;

        match track {
            100 => Ok(10),
            200 => Ok(20),
            300 => Ok(30),
            _ => Err(NoEvent::Unrouted("track_not_found")),
        }
    }

    fn transcoded_files(&self, entry: i64) -> Fact<Arc<[TranscodedFile]>> {
        self.fetch(LookupKey::Files(entry))?;
        let file = |asset_type_id, status: &str| TranscodedFile {
            asset_type_id,
            status: status.into(),
        };

        Ok(if entry == 8 {
            Arc::default()
        } else {
            [file(4, "complete"), file(2, "error")].into()
        })
    }

    fn has_addon(&self, user: &UserId, _: Addon) -> Fact<bool> {
        self.fetch(LookupKey::Addons(user.clone()))?;
        Ok(!self.without_addons.get())
    }

    fn recognises_distribution_status(&self, status: &str) -> bool {
        RECOGNISED.contains(&status)
    }
}

pub fn user(name: &str) -> UserId {
    UserId(name.into())
}

/// Returns a row with these columns; the others are null.
pub fn tuple(table: Table, values: &[(&str, &str)]) -> Tuple {
    let mut tuple = Tuple::absent(table);

    for name in table.columns() {
        let given = values.iter().find(|(column, _)| column == name);
        tuple.set(
            table.column(name).unwrap(),
            given.map_or(Datum::Null, |(_, value)| Datum::text(*value)),
        );
    }

    assert!(
        values.iter().all(|(name, _)| table.column(name).is_some()),
        "{values:?}"
    );
    tuple
}

/// Returns the row with another value in one column.
pub fn with(table: Table, row: &Tuple, column: &str, value: Option<&str>) -> Tuple {
    let mut row = row.clone();
    row.set(
        table.column(column).unwrap(),
        value.map_or(Datum::Null, Datum::text),
    );

    row
}

pub fn change(table: Table, operation: Operation) -> Change {
    let committed_at = "2026-03-01T09:05:00.25Z".parse().unwrap();
    Change {
        position: Position::Wal {
            timeline: 1,
            commit: Lsn::ZERO,
            ordinal: 1,
        },
        committed_at,
        muted: false,
        table,
        operation,
    }
}

pub fn insert(table: Table, new: Tuple) -> Change {
    change(table, Operation::Insert { new })
}

pub fn update(table: Table, old: Option<Tuple>, new: Tuple) -> Change {
    change(table, Operation::Update { old, new })
}

/// Returns an update that changes `column` from `from` to its value in `new`.
pub fn moved(table: Table, new: &Tuple, column: &str, from: Option<&str>) -> Change {
    update(table, Some(with(table, new, column, from)), new.clone())
}

pub fn validator(rule: &Rule) -> Validator {
    jsonschema::options()
        .should_validate_formats(true)
        .build(&(rule.schema)())
        .expect("a valid schema")
}

pub fn assert_valid(validator: &Validator, data: &str) {
    let instance: Value = serde_json::from_str(data).expect("data is JSON");
    let errors: Vec<String> = validator
        .iter_errors(&instance)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{data}: {errors:?}");
}
