//! Derives events from a batch of changes. Changes are processed in order, and lookups are updated
//! by each change before its rules run: a rule sees other tables as they are at its change. Missing
//! rows are fetched for the rest of the batch at once.

use std::collections::HashSet;

use uuid::Uuid;

use crate::domain::addons::AddonChanges;
use crate::domain::change::{Batch, Change};
use crate::domain::event::{Event, EventKind, bounded_data, event_id};
use crate::domain::ledger::LedgerChanges;
use crate::domain::lsn::Lineage;
use crate::domain::position::{Checkpoint, Progress};
use crate::events::{Derived, LookupKey, NoEvent, Rule, rules_for};
use crate::lookup::{LookupError, Lookups, follow_addons};
use crate::store::ignored::IgnoredTransitions;
use crate::store::unrouted::Unrouted;
use crate::telemetry::recurring;

/// The reason of events whose row does not match the reference schema.
pub(super) const MALFORMED: &str = "malformed_row";

/// The events that a batch of changes raises, and its other changes to the store.
#[derive(Default)]
pub struct Raised {
    /// Longer data of an event cannot be sent, and is not stored whole.
    pub max_data: usize,
    pub events: Vec<Event>,
    pub unrouted: Vec<Unrouted>,
    /// One entry for each reason.
    pub ignored: Vec<IgnoredTransitions>,
    /// Releases that were distributed in this batch, including muted ones.
    pub distributed: HashSet<i64>,
    pub addons: AddonChanges,
    pub ledger: LedgerChanges,
    /// The changes of rows that are looked up in the store.
    pub lookup_rows: LedgerChanges,
    pub once: OncePerRelease,
}

/// The events that are raised at most once per release, with their releases.
#[derive(Default)]
pub struct OncePerRelease(Vec<(Uuid, i64)>);

impl OncePerRelease {
    /// Gives an event another id.
    pub fn rename(&mut self, from: Uuid, to: Uuid) {
        for (event, _) in &mut self.0 {
            if *event == from {
                *event = to;
            }
        }
    }

    /// Removes events whose release is not one of `first_time`, the releases that were never
    /// distributed before.
    pub fn keep_first(&self, events: &mut Vec<Event>, mut first_time: HashSet<i64>) {
        let repeated: HashSet<Uuid> = self
            .0
            .iter()
            .filter(|(_, release)| !first_time.remove(release))
            .map(|(event, _)| *event)
            .collect();
        if !repeated.is_empty() {
            events.retain(|event| !repeated.contains(&event.id));
        }
    }
}

impl Raised {
    fn ignore(&mut self, ignored: IgnoredTransitions) {
        let mut others = self.ignored.iter_mut();

        match others.find(|other| other.reason == ignored.reason) {
            Some(other) => {
                *other = IgnoredTransitions {
                    transitions: other.transitions + ignored.transitions,
                    ..ignored
                }
            }
            None => self.ignored.push(ignored),
        }
    }

    /// Takes out an event that is not stored. Its release counts as never distributed.
    pub fn withdraw(&mut self, index: usize) -> Event {
        let event = self.events.remove(index);
        let Raised {
            once, distributed, ..
        } = self;

        once.0.retain(|(id, release)| {
            let is_withdrawn = *id == event.id;
            if is_withdrawn {
                distributed.remove(release);
            }

            !is_withdrawn
        });

        event
    }
}

/// The derivation of one batch. A retry continues where a failure stopped it. Starting again would
/// be wrong: lookups have followed the changes up to there, so an earlier change would see rows
/// that are newer than itself.
pub struct Derivation {
    /// The store's progress when the derivation began.
    pub stored: Progress,
    pub raised: Raised,
    /// The checkpoint from which the batch continues, until lookups are prepared for the batch.
    unprepared: Option<Checkpoint>,
    /// The index of the next change to derive.
    next: usize,
}

impl Derivation {
    /// Derives the changes that the checkpoint does not include. Takes the events of a log as they
    /// are.
    pub fn new(batch: &Batch, from: &Checkpoint, max_data: usize) -> Derivation {
        let stored = from.progress.clone();
        let next = batch
            .changes
            .partition_point(|change| stored.includes(&change.position));
        let derived = batch.derived.iter();
        let events = derived.filter(|event| !stored.includes(&event.position));
        let raised = Raised {
            max_data,
            events: events.cloned().collect(),
            ..Raised::default()
        };

        Derivation {
            stored,
            raised,
            unprepared: Some(from.clone()),
            next,
        }
    }

    /// Derives the rest of the batch.
    pub async fn finish(
        &mut self,
        lookups: &mut Lookups,
        batch: &Batch,
    ) -> Result<(), LookupError> {
        let lineage = batch.checkpoint.lineage;

        if let Some(from) = &self.unprepared {
            lookups.continue_from(from, lineage);
            lookups
                .begin(&batch.changes[self.next..], lineage.timeline)
                .await?;
            self.unprepared = None;
        }

        let source = Source::Stream {
            transaction: batch.transaction,
        };

        derive_from(
            lookups,
            &batch.changes,
            &mut self.next,
            lineage,
            source,
            &mut self.raised,
        )
        .await?;

        lookups.reached(&batch.checkpoint);
        Ok(())
    }
}

/// Derives the events of changes that a repair found. Lookups do not follow them, because the
/// changes of other tables are missing: every row is fetched.
pub async fn derive_found(
    lookups: &mut Lookups,
    changes: &[Change],
    lineage: Lineage,
    max_data: usize,
) -> Result<Raised, LookupError> {
    let mut raised = Raised {
        max_data,
        ..Raised::default()
    };

    lookups.begin(changes, lineage.timeline).await?;

    derive_from(
        lookups,
        changes,
        &mut 0,
        lineage,
        Source::Repair,
        &mut raised,
    )
    .await?;

    Ok(raised)
}

/// Returns what each rule derives from changes that are only supposed, with the indexes of the
/// changes. Nothing is stored.
pub async fn derive_supposed(
    lookups: &mut Lookups,
    changes: &[Change],
) -> Result<Vec<(usize, EventKind, Result<Derived, NoEvent>)>, LookupError> {
    lookups.begin(changes, 0).await?;
    let mut fetched: HashSet<LookupKey> = HashSet::new();

    loop {
        let missing = missing_for(lookups, changes);
        if missing.is_subset(&fetched) {
            break;
        }

        lookups.fetch(&missing, None).await?;
        fetched.extend(missing);
    }

    let of_change = |(index, change): (usize, &Change)| {
        let rules = rules_for(change.table);
        let derived: Vec<_> = rules
            .map(|rule| (index, rule.kind, run_rule(rule, change, lookups)))
            .collect();
        derived
    };

    Ok(changes.iter().enumerate().flat_map(of_change).collect())
}

/// Where changes come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The WAL or the outbox. `transaction` is that of the last change: lookups wait until it is
    /// visible.
    Stream {
        transaction: Option<u32>,
    },
    Repair,
}

async fn derive_from(
    lookups: &mut Lookups,
    changes: &[Change],
    next: &mut usize,
    lineage: Lineage,
    source: Source,
    raised: &mut Raised,
) -> Result<(), LookupError> {
    let mut fetched: HashSet<LookupKey> = HashSet::new();
    let transaction = match source {
        Source::Stream { transaction } => transaction,
        Source::Repair => None,
    };

    while let Some(change) = changes.get(*next) {
        let completed = lookups.completed(change);

        if source != Source::Repair {
            lookups.follow(&completed, &mut raised.lookup_rows);
        }

        let Some(change) = completed.within() else {
            *next += 1;
            continue;
        };

        match derive_one(lookups, &change, lineage, raised) {
            DeriveStep::Done => {
                follow_addons(&change, &mut raised.addons);
                raised.ledger.follow(&change);
                *next += 1;
            }
            DeriveStep::RowMissing => {
                let keys = missing_for(lookups, &changes[*next..]);
                // A key that is still missing after it was fetched would be fetched forever.
                if keys.is_subset(&fetched) {
                    return Err(LookupError::Unanswered(format!("{keys:?}")));
                }

                lookups.fetch(&keys, transaction).await?;
                fetched.extend(keys);
            }
        }
    }

    Ok(())
}

enum DeriveStep {
    Done,
    RowMissing,
}

/// Adds the events of one change. Adds nothing if a looked-up row is missing. A muted change raises
/// nothing, but counts as its release's distribution.
fn derive_one(
    lookups: &Lookups,
    change: &Change,
    lineage: Lineage,
    raised: &mut Raised,
) -> DeriveStep {
    let mut results = Vec::new();

    for rule in rules_for(change.table) {
        match run_rule(rule, change, lookups) {
            Err(NoEvent::Lookup(_)) => return DeriveStep::RowMissing,
            result => results.push((rule, result)),
        }
    }

    for (rule, result) in results {
        let unrouted = |reason, detail| Unrouted::new(rule.kind, change, lineage, reason, detail);

        match result {
            Ok(derived) if change.muted => raised.distributed.extend(derived.once_for_release),
            Err(_) if change.muted => {}
            Err(NoEvent::NotApplicable | NoEvent::Lookup(_)) => {}
            Err(NoEvent::Ignored { reason, value }) => {
                let ignored = IgnoredTransitions::new(reason, change, &value);

                recurring!(
                    warn,
                    of format!("{reason} {value}"),
                    reason,
                    table = ignored.table,
                    row = ignored.row,
                    value = ignored.value,
                    "transitions to and from this value raise no event, because no map names it"
                );

                raised.ignore(ignored);
            }
            Ok(derived) => {
                let id = event_id(lineage.system_identifier, change, rule.kind);

                if let Some(release) = derived.once_for_release {
                    if !raised.distributed.insert(release) {
                        continue;
                    }

                    raised.once.0.push((id, release));
                }

                raised.events.push(Event {
                    id,
                    kind: rule.kind,
                    user: derived.owner,
                    label: derived.label,
                    occurred_at: change.committed_at,
                    position: change.position,
                    repaired: false,
                    data: bounded_data(derived.data, raised.max_data),
                });
            }
            Err(NoEvent::Unrouted(reason)) => {
                raised.unrouted.push(unrouted(reason, String::new()));
            }
            Err(NoEvent::LookupFailed(detail)) => {
                raised.unrouted.push(unrouted("lookup_failed", detail));
            }
            Err(NoEvent::Malformed(detail)) => {
                let table = change.table.name();
                let lsn = change.position.commit().map(tracing::field::display);

                recurring!(
                    warn,
                    table,
                    detail = detail.as_str(),
                    lsn,
                    "rows do not match the mapping: they are stored as unrouted events"
                );

                raised.unrouted.push(unrouted(MALFORMED, detail));
            }
        }
    }

    DeriveStep::Done
}

/// Runs a rule. A row that must be fetched because a value was not sent, and that no longer exists,
/// has no owner.
fn run_rule(rule: &Rule, change: &Change, lookups: &Lookups) -> Result<Derived, NoEvent> {
    match lookups.derive(rule, change) {
        Err(NoEvent::Lookup(key)) if lookups.is_gone(&key) => Err(NoEvent::Unrouted("row_gone")),
        Err(NoEvent::Lookup(key)) => Err(match lookups.failure(&key) {
            Some(error) => NoEvent::LookupFailed(format!("{key}: {error}")),
            None => NoEvent::Lookup(key),
        }),
        result => result,
    }
}

/// Returns the rows that the rules of the remaining changes need next.
fn missing_for(lookups: &Lookups, changes: &[Change]) -> HashSet<LookupKey> {
    let mut missing = HashSet::new();

    for change in changes {
        let completed = lookups.completed(change);
        let Some(change) = completed.within() else {
            continue;
        };

        for rule in rules_for(change.table) {
            if let Err(NoEvent::Lookup(key)) = run_rule(rule, &change, lookups) {
                missing.insert(key);
            }
        }
    }

    missing
}
