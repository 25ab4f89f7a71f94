//! The filters of the delivery log: each is defined here once, for the API, its document and the web
//! UI. Times are not among them, because forms and queries read them in their own ways.

use std::fmt::Display;
use std::str::FromStr;

use super::logs::OUTCOMES;
use crate::domain::delivery::{ErrorKind, Outcome};
use crate::domain::event::EventKind;
use crate::store::logs::{LogFilter, StatusFilter};

/// Longer catalogue numbers and names of outlets do not occur.
pub const MAX_TEXT_CHARS: usize = 200;

/// A filter.
pub struct FilterField {
    /// The name of the parameter.
    pub name: &'static str,
    /// The label in the web UI.
    pub label: &'static str,
    /// The description in the API's document.
    pub description: &'static str,
    pub kind: FilterKind,
    /// Whether the web UI folds it away.
    pub is_advanced: bool,
    /// Sets the filter. The error says what was expected.
    pub set: fn(&mut LogFilter, &str) -> Result<(), String>,
}

/// The values that a filter takes.
pub enum FilterKind {
    /// One of these names.
    Choice(fn() -> Vec<&'static str>),
    /// One of these names, or a status.
    Status,
    Number,
    Text,
    Id,
}

/// All filters, in the order in which they are shown.
pub static FILTERS: [FilterField; 10] = [
    FilterField {
        name: "cat",
        label: "Catalogue number",
        description: "Only events of the releases with this catalogue number, in any case",
        kind: FilterKind::Text,
        is_advanced: false,
        set: |filter, value| set(&mut filter.catalogue, text(value)),
    },
    FilterField {
        name: "outlet_id",
        label: "Outlet",
        description: "Only events of this outlet, by its id or its name, in any case",
        kind: FilterKind::Text,
        is_advanced: false,
        set: |filter, value| {
            set(
                &mut filter.outlet,
                text(value).map(|text| text.to_lowercase()),
            )
        },
    },
    FilterField {
        name: "event",
        label: "Event type",
        description: "Only this event",
        kind: FilterKind::Choice(|| EventKind::ALL.iter().map(|kind| kind.as_str()).collect()),
        is_advanced: false,
        set: |filter, value| set(&mut filter.event, EventKind::from_str(value)),
    },
    FilterField {
        name: "outcome",
        label: "Outcome",
        description: "Only this outcome",
        kind: FilterKind::Choice(|| OUTCOMES.map(Outcome::as_str).to_vec()),
        is_advanced: false,
        set: |filter, value| {
            let found = super::logs::outcome(value);
            set(
                &mut filter.outcome,
                found.ok_or_else(|| one_of(&OUTCOMES.map(Outcome::as_str))),
            )
        },
    },
    FilterField {
        name: "status",
        label: "Response status",
        description: "Only this response status, this class of responses, or attempts without a response (`none`)",
        kind: FilterKind::Status,
        is_advanced: false,
        set: |filter, value| {
            let expected = || {
                format!(
                    "{}, or a status such as 503",
                    one_of(&StatusFilter::CLASSES)
                )
            };
            set(
                &mut filter.status,
                StatusFilter::parse(value).ok_or_else(expected),
            )
        },
    },
    FilterField {
        name: "error",
        label: "Failure",
        description: "Only attempts that failed like this",
        kind: FilterKind::Choice(errors),
        is_advanced: true,
        set: |filter, value| {
            let found = ErrorKind::ALL.iter().find(|kind| kind.as_str() == value);
            set(
                &mut filter.error,
                found.copied().ok_or_else(|| one_of(&errors())),
            )
        },
    },
    FilterField {
        name: "release_id",
        label: "Release ID",
        description: "Only events of this release",
        kind: FilterKind::Number,
        is_advanced: true,
        set: |filter, value| set(&mut filter.release, number(value)),
    },
    FilterField {
        name: "track_id",
        label: "Track ID",
        description: "Only events of this track",
        kind: FilterKind::Number,
        is_advanced: true,
        set: |filter, value| set(&mut filter.track, number(value)),
    },
    FilterField {
        name: "event_id",
        label: "Event ID",
        description: "Only deliveries of this event",
        kind: FilterKind::Id,
        is_advanced: true,
        set: |filter, value| set(&mut filter.event_id, id(value)),
    },
    FilterField {
        name: "delivery",
        label: "Delivery ID",
        description: "Only this delivery",
        kind: FilterKind::Id,
        is_advanced: true,
        set: |filter, value| set(&mut filter.delivery, id(value)),
    },
];

fn set<T, E: Display>(field: &mut Option<T>, value: Result<T, E>) -> Result<(), String> {
    *field = Some(value.map_err(|error| error.to_string())?);
    Ok(())
}

fn errors() -> Vec<&'static str> {
    ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect()
}

/// The error of a text that is none of these names.
fn one_of(names: &[&str]) -> String {
    format!("expected one of {}", names.join(", "))
}

fn text(value: &str) -> Result<String, String> {
    let value = value.trim();
    let is_short = value.chars().count() <= MAX_TEXT_CHARS;
    let is_text = !value.is_empty() && !value.contains('\0');
    (is_short && is_text)
        .then(|| value.to_owned())
        .ok_or_else(|| format!("expected 1 to {MAX_TEXT_CHARS} characters"))
}

fn number(value: &str) -> Result<i64, &'static str> {
    value.trim().parse().map_err(|_| "expected a number")
}

fn id(value: &str) -> Result<uuid::Uuid, &'static str> {
    value
        .trim()
        .parse()
        .map_err(|_| "expected an id, such as 0195504c-a3a0-7abc-8def-0123456789ab")
}
