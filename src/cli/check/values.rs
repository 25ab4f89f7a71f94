//! Checks of the value maps: which values of the platform's rows have no meaning, and which events
//! no value can raise.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Config, Source};
use crate::domain::change::{Datum, Tuple};
use crate::domain::event::EventKind;
use crate::domain::survey::SurveyedColumn;
use crate::domain::table::{ID, Table};
use crate::events::{NoEvent, Rule, rules_for, supposed_change};
use crate::lookup::Lookups;
use crate::primary::finding::Finding;
use crate::primary::survey::survey_columns;
use crate::propose::{meaning_of, possible};
use crate::store::Store;

/// The values that a finding lists.
const MAX_VALUES: usize = 10;

/// Inspects the values of the mapped columns.
pub(super) async fn inspect(config: &Config) -> Vec<Finding> {
    const SUBJECT: &str = "values";

    let (Ok(url), Ok(store_url)) = (config.source_url(), config.store_url()) else {
        return Vec::new();
    };
    let Ok(store) = Store::open(store_url, 1) else {
        return Vec::new();
    };

    let source = &config.source;
    let followed = Table::ALL.iter().filter(|table| source.follows(**table));
    let columns: Vec<(Table, &'static str)> = followed
        .flat_map(|table| source.tables.stored(*table).map(|column| (*table, column)))
        .filter(|(table, column)| has_meanings(*table, column))
        .collect();

    let surveyed = match survey_columns(url, source, &columns).await {
        Ok(surveyed) => surveyed,
        Err(error) => {
            let remedy = "run `walhook check` again";
            return vec![Finding::warn(SUBJECT, error.to_string(), remedy)];
        }
    };

    // Only derives: reads nothing.
    let lookups = Lookups::for_repair(url, source, store);
    let findings: Vec<Finding> = surveyed
        .iter()
        .filter_map(|(table, column, own)| judge(source, &lookups, *table, column, own))
        .collect();

    if findings.is_empty() {
        let state = format!("the maps of {} columns are complete", surveyed.len());
        return vec![Finding::ok(SUBJECT, state)];
    }

    findings
}

/// Judges the values of one column.
fn judge(
    source: &Source,
    lookups: &Lookups,
    table: Table,
    column: &'static str,
    own: &SurveyedColumn,
) -> Option<Finding> {
    let setting = format!("source.tables.{}.values.{column}", table.name());
    let seen = own.values.iter().filter(|value| value.share > 0.0);
    let mapped: Vec<Datum> = seen
        .map(|value| source.tables.datum(table, column, Some(&value.text)))
        .collect();
    let meanings = || mapped.iter().filter_map(Datum::as_str);
    let mut problems = Vec::new();

    let unnamed = unnamed(source, table, column, meanings());
    if !unnamed.is_empty() {
        let more = if unnamed.len() > MAX_VALUES {
            ", …"
        } else {
            ""
        };
        let listed: Vec<&str> = unnamed.iter().copied().take(MAX_VALUES).collect();
        problems.push(format!(
            "rows have values that no map names: {}{more}",
            listed.join(", ")
        ));
    }

    let is_text = matches!(own.category.as_str(), "S" | "E");
    let has = |status: &str| own.values.iter().any(|value| value.text == status);
    // The type or a constraint lists the values.
    let is_listed = own.category == "E" || own.values.iter().any(|value| value.share == 0.0);

    // A text may be the status itself, unless the platform has another word for it.
    let may_have = |status: &str| {
        let mut words = meanings().filter(|word| meaning_of(table, column, word) == Some(status));
        !is_listed && unnamed.is_empty() && words.next().is_none()
    };
    let is_reachable = |status: &str| {
        let is_itself = source.tables.datum(table, column, Some(status)).as_str() == Some(status);
        source
            .tables
            .meanings(table, column)
            .any(|meaning| meaning == status)
            || is_text && is_itself && (has(status) || may_have(status))
    };

    for (statuses, kinds) in raised_by(lookups, table, column) {
        if !statuses.iter().any(|status| is_reachable(status)) {
            problems.push(format!(
                "no value means {}, so {} cannot be raised",
                statuses.join(" or "),
                kinds.join(" and ")
            ));
        }
    }

    let remedy = format!(
        "name the platform's values in {setting}: each means one of {}; `walhook init --explain` shows rows",
        possible(table, column).join(", ")
    );
    (!problems.is_empty()).then(|| Finding::warn(setting, problems.join("; "), remedy))
}

/// Returns the statuses that raise events, with the events: those for which a platform must have a
/// value.
fn raised_by(
    lookups: &Lookups,
    table: Table,
    column: &str,
) -> BTreeMap<Vec<&'static str>, Vec<&'static str>> {
    let raises = |rule: &Rule, status: &str| {
        let mut row = Tuple::absent(table);
        row.set(ID, Datum::text("0"));
        if let Some(column) = table.column(column) {
            row.set(column, Datum::text(status));
        }

        let change = supposed_change(table, &row);
        // Everything else that the event needs is missing.
        !matches!(
            lookups.derive(rule, &change),
            Err(NoEvent::NotApplicable | NoEvent::Ignored { .. })
        )
    };

    let mut statuses_of = BTreeMap::<Vec<&str>, Vec<&str>>::new();

    for rule in rules_for(table) {
        // A platform may keep no failures, for example if its status is a time.
        let may_be_missing = matches!(
            rule.kind,
            EventKind::DeliveryFailed | EventKind::TranscodeFailed
        );
        if may_be_missing || raises(rule, "any other") {
            continue;
        }

        let mut statuses = possible(table, column);
        statuses.retain(|status| raises(rule, status));

        if !statuses.is_empty() {
            statuses_of
                .entry(statuses)
                .or_default()
                .push(rule.kind.as_str());
        }
    }

    statuses_of
}

/// Returns whether the values of a column are names with a meaning. Booleans are understood in every
/// form.
fn has_meanings(table: Table, column: &str) -> bool {
    let possible = possible(table, column);
    !possible.is_empty() && !possible.contains(&"true")
}

/// Returns the values that have no meaning, of a column's values under the reference schema.
pub(in crate::cli) fn unnamed<'a>(
    source: &Source,
    table: Table,
    column: &str,
    values: impl Iterator<Item = &'a str>,
) -> BTreeSet<&'a str> {
    let is_status = (table, column) == (Table::DistroQueue, "status");
    let listed = source.distribution_statuses.iter().filter(|_| is_status);
    let named: BTreeSet<&str> = listed
        .map(String::as_str)
        .chain(possible(table, column))
        .chain(source.tables.meanings(table, column))
        .collect();

    // Statuses that raise nothing need no name, but nobody can read a number. Once some have a name,
    // the others are those on the way there.
    let is_any_wrong = is_status || table.closed_values(column).is_some();
    let is_open = source.tables.maps_values(table, column);
    let is_wrong = |value: &&str| is_any_wrong || !is_open && value.parse::<f64>().is_ok();

    let values = values.filter(|_| has_meanings(table, column));
    values
        .filter(|value| is_wrong(value) && !named.contains(value))
        .collect()
}
