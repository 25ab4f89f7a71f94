//! From a batch of changes to what they raised. Changes are taken in order, each first followed by the lookups, so that a
//! rule sees other tables as they are at its change. What is missing is fetched for the rest of the batch at once.

use std::collections::HashSet;

use uuid::Uuid;

use crate::domain::change::{Batch, Change, Operation};
use crate::domain::event::{Event, event_id};
use crate::domain::ledger::LedgerChanges;
use crate::domain::lsn::{Lineage, Position};
use crate::domain::table::Column;
use crate::events::{Derived, LookupKey, NoEvent, Rule, rules_for};
use crate::lookup::{LookupError, Lookups, follow_addons};
use crate::store::addons::AddonChanges;
use crate::store::enqueue::Unrouted;
use crate::telemetry::recurring;

/// What a batch comes to.
#[derive(Default)]
pub struct Raised {
    pub events: Vec<Event>,
    pub unrouted: Vec<Unrouted>,
    pub ignored: Vec<&'static str>,
    /// Releases that moved into distribution, in this batch; muted ones too.
    pub distributed: HashSet<i64>,
    pub addons: AddonChanges,
    pub ledger: LedgerChanges,
    pub once: Once,
}

/// Which events are raised once a release.
#[derive(Default)]
pub struct Once(Vec<(Uuid, i64)>);

impl Once {
    /// Drops those of `events` whose releases had been distributed before; `first_time` are those that had not.
    pub fn keep_first(&self, events: &mut Vec<Event>, mut first_time: HashSet<i64>) {
        let repeated: HashSet<Uuid> =
            self.0.iter().filter(|(_, release)| !first_time.remove(release)).map(|(event, _)| *event).collect();
        if !repeated.is_empty() {
            events.retain(|event| !repeated.contains(&event.id));
        }
    }
}

/// The derivation of one batch. After a failure it goes on where it stopped: lookups have followed the stream up to there, so a
/// change that was derived again would see facts that are newer than itself.
pub struct Derivation {
    /// What the store had when it began.
    pub stored: Position,
    pub raised: Raised,
    /// Whether lookups are prepared for the batch.
    prepared: bool,
    /// The first change that is not derived.
    next: usize,
}

impl Derivation {
    /// Of the changes behind `stored`.
    pub fn new(batch: &Batch, stored: Position) -> Derivation {
        let next = batch.changes.partition_point(|change| change.position <= stored);
        Derivation { stored, raised: Raised::default(), prepared: false, next }
    }

    /// Derives what is left of the batch.
    pub async fn finish(&mut self, lookups: &mut Lookups, batch: &Batch) -> Result<(), LookupError> {
        let Batch { changes, checkpoint, transaction, .. } = batch;
        self.derive(lookups, changes, checkpoint.lineage, Origin::Stream(*transaction)).await
    }

    async fn derive(
        &mut self,
        lookups: &mut Lookups,
        changes: &[Change],
        lineage: Lineage,
        origin: Origin,
    ) -> Result<(), LookupError> {
        let mut fetched: HashSet<LookupKey> = HashSet::new();
        let transaction = match origin {
            Origin::Stream(transaction) => transaction,
            Origin::Comparison => None,
        };
        if !self.prepared {
            lookups.begin(&changes[self.next..]).await?;
            self.prepared = true;
        }
        while let Some(change) = changes.get(self.next) {
            let change = &*lookups.completed(change);
            if origin != Origin::Comparison {
                lookups.follow(change);
            }
            match derive_one(lookups, change, lineage, &mut self.raised) {
                Step::Done => {
                    follow_addons(change, &mut self.raised.addons);
                    self.raised.ledger.follow(change);
                    self.next += 1;
                }
                Step::FactMissing => {
                    let keys = missing_for(lookups, &changes[self.next..]);
                    // A key that stays missing although it was fetched would be asked for for ever.
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
}

/// What changes raise that a comparison found. Lookups do not follow them: what the stream would have shown beside them is
/// not there, so all is asked for.
pub async fn derive_found(lookups: &mut Lookups, changes: &[Change], lineage: Lineage) -> Result<Raised, LookupError> {
    let mut derivation =
        Derivation { stored: Position::default(), raised: Raised::default(), prepared: false, next: 0 };
    derivation.derive(lookups, changes, lineage, Origin::Comparison).await?;
    Ok(derivation.raised)
}

/// Where changes come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// With the last one's transaction, which lookups wait to see.
    Stream(Option<u32>),
    Comparison,
}

enum Step {
    Done,
    FactMissing,
}

/// Adds what one change raises, or nothing at all where a fact is missing.
fn derive_one(lookups: &Lookups, change: &Change, lineage: Lineage, raised: &mut Raised) -> Step {
    if change.muted {
        return derive_muted(lookups, change, raised);
    }
    let mut verdicts = Vec::new();
    for rule in rules_for(change.table) {
        match judge(rule, change, lookups) {
            Err(NoEvent::Lookup(_)) => return Step::FactMissing,
            verdict => verdicts.push((rule, verdict)),
        }
    }
    for (rule, verdict) in verdicts {
        match verdict {
            Err(NoEvent::NotApplicable | NoEvent::Lookup(_)) => {}
            Err(NoEvent::Ignored(reason)) => raised.ignored.push(reason),
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
                    occurred_at: change.committed_at,
                    position: change.position,
                    origin: change.origin,
                    data: derived.data.into(),
                });
            }
            Err(NoEvent::Unrouted(reason)) => raised.unrouted.push(unrouted(rule, change, lineage, reason)),
            Err(NoEvent::Malformed(detail)) => {
                let (table, lsn) = (change.table.name(), change.position.commit);
                recurring!(warn, table, detail, %lsn, "rows are not what the mapping promises: they are counted as unrouted");
                raised.unrouted.push(unrouted(rule, change, lineage, "malformed_row"));
            }
        }
    }
    Step::Done
}

/// What a rule says; that nobody can say it any more where a value was not sent and its row is gone.
fn judge(rule: &Rule, change: &Change, lookups: &Lookups) -> Result<Derived, NoEvent> {
    match (rule.derive)(change, lookups) {
        Err(NoEvent::Lookup(key)) if lookups.is_gone(&key) => Err(NoEvent::Unrouted("row_gone")),
        verdict => verdict,
    }
}

/// A muted change raises nothing, but what it would have raised once for its release is used up.
fn derive_muted(lookups: &Lookups, change: &Change, raised: &mut Raised) -> Step {
    for rule in rules_for(change.table) {
        match judge(rule, change, lookups) {
            Err(NoEvent::Lookup(_)) => return Step::FactMissing,
            Ok(derived) => raised.distributed.extend(derived.once_for_release),
            _ => {}
        }
    }
    Step::Done
}

fn unrouted(rule: &Rule, change: &Change, lineage: Lineage, reason: &'static str) -> Unrouted {
    Unrouted {
        id: event_id(lineage.system_identifier, change, rule.kind),
        kind: rule.kind,
        reason,
        table: change.table.name(),
        row: row_id(change),
        occurred_at: change.committed_at,
        position: change.position,
        origin: change.origin,
    }
}

/// Every captured table has its id in the first column.
fn row_id(change: &Change) -> String {
    let tuple = match &change.operation {
        Operation::Insert { new } | Operation::Update { new, .. } | Operation::Replace { new, .. } => new,
        Operation::Delete { old } => old,
        Operation::Truncate => return String::new(),
    };
    tuple.text(Column(0)).unwrap_or_default().to_owned()
}

/// All that the rules would next ask for, over the changes that are left.
fn missing_for(lookups: &Lookups, changes: &[Change]) -> HashSet<LookupKey> {
    let mut missing = HashSet::new();
    for change in changes {
        for rule in rules_for(change.table) {
            if let Err(NoEvent::Lookup(key)) = judge(rule, &lookups.completed(change), lookups) {
                missing.insert(key);
            }
        }
    }
    missing
}
