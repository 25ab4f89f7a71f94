//! Proposes what the platform's values mean.

use super::Choices;
use super::words::{meanings, value_key, words};
use crate::domain::survey::SurveyedColumn;
use crate::domain::table::Table;

/// The proposed meanings of a column's values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueMap {
    /// The platform's value and its meaning, without those that are the same.
    pub mapped: Vec<(String, String)>,
    /// Codes whose meaning only a person can know.
    pub unknown: Vec<Code>,
    /// Texts that have no meaning for events.
    pub passed_on: Vec<Code>,
    /// The one meaning of the column that none of its values has.
    pub unseen: Option<&'static str>,
}

/// A value that is not mapped, and its share of the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Code {
    pub text: String,
    pub share: f64,
}

impl ValueMap {
    /// Returns a map whose values have these meanings.
    pub fn of(mapped: &[(&str, &str)]) -> ValueMap {
        ValueMap {
            mapped: mapped
                .iter()
                .map(|(own, meaning)| ((*own).to_owned(), (*meaning).to_owned()))
                .collect(),
            ..ValueMap::default()
        }
    }
}

/// Returns the names of the meanings that a column's values can have.
pub fn possible(table: Table, column: &str) -> Vec<&'static str> {
    let meanings = meanings(table, column).iter();
    meanings.map(|(meaning, _)| meaning.as_str()).collect()
}

/// Returns the meaning that a text names.
pub fn meaning_of(table: Table, column: &str, text: &str) -> Option<&'static str> {
    let named = words(text);
    let mut meanings = meanings(table, column).iter();
    meanings.find_map(|(meaning, phrases)| {
        let is_named = phrases.0.iter().any(|phrase| phrase.words == named);
        is_named.then_some(meaning.as_str())
    })
}

/// Proposes the meanings of `own`'s values for a column of the reference schema.
pub(super) fn map_values(
    table: Table,
    column: &'static str,
    own: &SurveyedColumn,
    choices: &Choices,
) -> ValueMap {
    let mut map = ValueMap::default();

    if meanings(table, column).is_empty() {
        return map;
    }

    if own.category == "B" {
        return of_boolean(table, column, own);
    }

    let mut values: Vec<Code> = own
        .values
        .iter()
        .map(|value| Code {
            text: value.text.clone(),
            share: value.share,
        })
        .collect();

    for (code, _) in &own.meanings {
        if !values.iter().any(|value| value.text == *code) {
            values.push(Code {
                text: code.clone(),
                share: 0.0,
            });
        }
    }

    // The codes of a status in their order; names stay in the order of an enum or of their frequency.
    if values.iter().all(|value| value.text.parse::<i64>().is_ok()) {
        values.sort_by_key(|value| value.text.parse::<i64>().ok());
    }

    for value in values {
        let chosen = choices.codes.get(&(table, column, value.text.clone()));
        let label = own.meanings.iter().find(|(code, _)| *code == value.text);
        let label = chosen
            .or(label.map(|(_, label)| label))
            .unwrap_or(&value.text)
            .clone();
        let is_named = value.text.parse::<f64>().is_err() || label != value.text;

        match meaning_of(table, column, &label) {
            Some(meaning) if meaning == value.text => {}
            Some(meaning) => map.mapped.push((value.text, meaning.to_owned())),
            None if !is_named => map.unknown.push(value),
            // Names of codes are passed on to the receivers of distribution statuses.
            None if label != value.text && table.closed_values(column).is_none() => {
                map.mapped.push((value.text, value_key(&label)));
            }
            None => map.passed_on.push(value),
        }
    }

    add_unseen(table, column, own, &mut map);

    if let ([meaning], true) = (possible(table, column).as_slice(), map.unknown.is_empty()) {
        let has_it = own.values.iter().any(|value| value.text == *meaning)
            || map.mapped.iter().any(|(_, mapped)| mapped == meaning);
        map.unseen = (!has_it).then_some(*meaning);
    }

    map
}

/// If values are written in capitals, those that no row has yet will be too.
fn add_unseen(table: Table, column: &str, own: &SurveyedColumn, map: &mut ValueMap) {
    let is_in_capitals = |text: &str| {
        text.len() > 1 && text.chars().any(char::is_alphabetic) && text == text.to_uppercase()
    };
    let is_closed = own.category == "E" || own.values.iter().any(|value| value.share == 0.0);
    if is_closed
        || own.values.is_empty()
        || !own.values.iter().all(|value| is_in_capitals(&value.text))
    {
        return;
    }

    for meaning in possible(table, column) {
        let is_boolean = meaning == "true" || meaning == "false";
        if !is_boolean && !map.mapped.iter().any(|(_, mapped)| mapped == meaning) {
            map.mapped
                .push((meaning.to_uppercase(), meaning.to_owned()));
        }
    }
}

/// A boolean says whether its name is true.
fn of_boolean(table: Table, column: &'static str, own: &SurveyedColumn) -> ValueMap {
    let mut named: Vec<String> = words(&own.name);
    named.retain(|word| word != "is" && word != "ha");

    let meaning = meaning_of(table, column, &named.join("_"));
    let (yes, no) = match (table, column, meaning) {
        (_, "takedown" | "pre_review_hold", _) => return ValueMap::default(),
        (Table::StreamRadarFlag, "status", Some("resolved")) => ("resolved", "active"),
        (Table::StreamRadarFlag, "status", _) => ("active", "resolved"),
        (Table::Payment, "status", _) => ("ready", "draft"),
        (Table::Release, "delivery_status", _) => ("distributed", "pending"),
        (Table::DistroQueue | Table::TranscoderQueue, "status", _) => ("complete", "scheduled"),
        _ => {
            let code = |text: &str| Code {
                text: text.to_owned(),
                share: 0.0,
            };
            return ValueMap {
                unknown: vec![code("t"), code("f")],
                ..ValueMap::default()
            };
        }
    };

    ValueMap::of(&[("t", yes), ("f", no)])
}
