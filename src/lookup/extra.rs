//! Adds the extra values of the changed row, and of the rows that its event names, to an event's
//! data.

use std::collections::HashMap;

use serde::Deserialize;

use super::Lookups;
use crate::config::TableMappings;
use crate::domain::change::Change;
use crate::domain::extra::{Extra, add_to};
use crate::domain::table::Table;
use crate::events::{Derived, Fact, LookupKey, NoEvent, Rule};

/// The rows that an event names in its data.
#[derive(Deserialize)]
struct Named {
    release_id: Option<i64>,
    track_id: Option<i64>,
    outlet_id: Option<i64>,
}

/// Returns the keys of each table that has extra values.
pub(super) fn keys(mappings: &TableMappings) -> HashMap<Table, Vec<String>> {
    let with_keys = Table::ALL
        .iter()
        .map(|table| (*table, mappings.extra(*table).keys().cloned().collect()));
    with_keys
        .filter(|(_, keys): &(Table, Vec<String>)| !keys.is_empty())
        .collect()
}

impl Lookups {
    /// Returns the keys of the extra values of a table's rows.
    pub(super) fn extra_keys(&self, table: Table) -> &[String] {
        self.extra.get(&table).map_or(&[], Vec::as_slice)
    }

    /// Derives an event from a change, with the extra values that its data shows.
    pub fn derive(&self, rule: &Rule, change: &Change) -> Fact<Derived> {
        let mut derived = (rule.derive)(change, self)?;
        let shown = rule.table.shown().iter();
        let shown: Vec<Table> = shown
            .copied()
            .filter(|table| self.extra.contains_key(table))
            .collect();

        if shown.is_empty() {
            return Ok(derived);
        }

        let named: Named = serde_json::from_str(&derived.data)
            .map_err(|error| NoEvent::LookupFailed(error.to_string()))?;
        let mut members: Vec<(&str, String)> = Vec::new();

        for table in shown {
            let keys = self.extra_keys(table);
            let extra = match (table, change.operation.rows()) {
                (own, (_, Some(row))) if own == rule.table => {
                    let is_complete = keys.iter().all(|key| row.extra.get(key).is_some());
                    match row.id().filter(|_| !is_complete) {
                        Some(id) => return Err(NoEvent::Lookup(LookupKey::Row(own, id))),
                        None => row.extra.clone(),
                    }
                }
                (Table::Label, _) => self.extra_of(table, derived.label, LookupKey::Label)?,
                (Table::Track, _) => self.extra_of(table, named.track_id, LookupKey::Track)?,
                (Table::Outlet, _) => self.extra_of(table, named.outlet_id, LookupKey::Outlet)?,
                _ => self.extra_of(table, named.release_id, LookupKey::Release)?,
            };

            let value = |key: &str| extra.get(key).unwrap_or("null").to_owned();
            members.extend(keys.iter().map(|key| (key.as_str(), value(key))));
        }

        members.sort();
        let members = members.iter().map(|(key, value)| (*key, value.as_str()));
        add_to(&mut derived.data, members);
        Ok(derived)
    }

    /// Returns the extra values of a row. None if there is no such row.
    fn extra_of(
        &self,
        table: Table,
        id: Option<i64>,
        key: impl Fn(i64) -> LookupKey,
    ) -> Fact<Extra> {
        let Some(id) = id else {
            return Ok(Extra::default());
        };

        let row = self
            .cache
            .row(table, id)
            .ok_or_else(|| NoEvent::Lookup(key(id)))?;
        Ok(row.map(|row| row.extra.clone()).unwrap_or_default())
    }
}
