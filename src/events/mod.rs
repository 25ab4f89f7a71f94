//! The event catalogue: the twelve events, the row transitions that raise them, and their `data`.
//!
//! One file per family of events. In each, an event's data struct, its catalogue entry and its
//! derivation rule stand side by side. Rules do no I/O: a rule reads one change and the [`Facts`]
//! about other rows. If a fact is not cached, the rule returns [`NoEvent::Lookup`]; the caller
//! fetches the row and runs the rule again.

mod catalogue;
mod distribution;
mod payment;
mod preflight;
mod release;
mod row;
mod rule;
mod statuses;
mod stream_radar;
mod supposed;
#[cfg(test)]
#[path = "../../tests/unit/events/mod.rs"]
mod tests;
mod transcode;
mod value;

pub use self::catalogue::{Catalogue, EventType};
pub use self::rule::{Derived, Fact, Facts, LookupKey, NoEvent, Release, Rule, TranscodedFile};
pub use self::statuses::{Statuses, statuses};
pub use self::supposed::supposed_change;
use crate::domain::event::EventKind;
use crate::domain::table::Table;

/// Every event, in [`EventKind::ALL`]'s order.
pub static CATALOGUE: [&Rule; EventKind::ALL.len()] = [
    &Rule::of::<distribution::DeliveryCompleted>(),
    &Rule::of::<distribution::DeliveryFailed>(),
    &Rule::of::<distribution::TakedownCompleted>(),
    &Rule::of::<release::ReviewStatusChanged>(),
    &Rule::of::<preflight::ReportReady>(),
    &Rule::of::<stream_radar::FlagCreated>(),
    &Rule::of::<stream_radar::FlagResolved>(),
    &Rule::of::<release::ReleaseDistributed>(),
    &Rule::of::<payment::StatementReady>(),
    &Rule::of::<transcode::TranscodeEnded<true>>(),
    &Rule::of::<transcode::TranscodeEnded<false>>(),
    &Rule::of::<distribution::OutletStatusChanged>(),
];

/// Returns the catalogue entry of an event.
pub fn rule(kind: EventKind) -> &'static Rule {
    CATALOGUE[kind as usize]
}

/// Returns the rules that apply to changes of `table`.
pub fn rules_for(table: Table) -> impl Iterator<Item = &'static Rule> {
    CATALOGUE
        .iter()
        .copied()
        .filter(move |rule| rule.table == table)
}
