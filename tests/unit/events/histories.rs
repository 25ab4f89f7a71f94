//! Property test: for random histories of two tenants' rows, the rules raise exactly the events
//! that an independent oracle expects, for the right owner.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::super::{CATALOGUE, NoEvent};
use super::fixtures::{FakeFacts, assert_valid, change, tuple, user, validator, with};
use crate::domain::change::{Change, Datum, Operation, Tuple};
use crate::domain::event::EventKind;
use crate::domain::table::Table;

const TABLES: [Table; 6] = [
    Table::Release,
    Table::DistroQueue,
    Table::TranscoderQueue,
    Table::Payment,
    Table::PreflightReport,
    Table::StreamRadarFlag,
];

type Value = Option<&'static str>;

/// Returns the columns that a history writes, and the values to choose from.
fn written(table: Table) -> &'static [(&'static str, &'static [Value])] {
    const TIMES: &[Value] = &[
        None,
        Some("2026-03-01 09:05:00.1+00"),
        Some("2026-03-02 09:05:00+00"),
    ];

    match table {
        Table::Release => &[
            (
                "review_status",
                &[
                    Some("draft"),
                    Some("to_review"),
                    Some("approved"),
                    Some("rejected"),
                    Some("require_changes"),
                    Some("audit"),
                    Some("limbo"),
                    None,
                ],
            ),
            (
                "delivery_status",
                &[None, Some("pending"), Some("distributed")],
            ),
            (
                "review_issues",
                &[None, Some("[]"), Some(r#"[{"n": 1.0}]"#)],
            ),
        ],
        Table::DistroQueue => &[
            (
                "status",
                &[
                    Some("scheduled"),
                    Some("batched"),
                    Some("complete"),
                    Some("error"),
                    Some("fault"),
                    Some("rejected"),
                    Some("batch_exception"),
                    Some("limbo"),
                    None,
                ],
            ),
            ("takedown", &[Some("f"), Some("t")]),
            ("outlet_id", &[None, Some("5"), Some("6")]),
        ],
        Table::TranscoderQueue => &[(
            "status",
            &[
                Some("running"),
                Some("complete"),
                Some("error"),
                Some("incomplete"),
                None,
            ],
        )],
        Table::Payment => &[
            (
                "status",
                &[Some("draft"), Some("ready"), Some("paid"), None],
            ),
            (
                "amount",
                &[Some("0.10"), Some("999999999999.99"), Some("-7.00")],
            ),
            ("currency", &[None, Some("EUR")]),
        ],
        Table::PreflightReport => &[
            ("generated_at", TIMES),
            ("blocking", &[Some("0"), Some("3")]),
        ],
        Table::StreamRadarFlag => &[
            (
                "status",
                &[Some("active"), Some("resolved"), Some("limbo"), None],
            ),
            ("severity", &[Some("low"), Some("medium"), Some("high")]),
            ("resolved_at", TIMES),
        ],
        _ => unreachable!("only captured tables are written"),
    }
}

/// Returns a row with the columns that a history does not write. `tenant` is 1 or 2; the ids of its
/// rows begin with that digit.
fn constants(table: Table, tenant: usize) -> Tuple {
    let label = tenant.to_string();
    let release = format!("{tenant}0");
    let track = format!("{tenant}00");
    let of_release = [("id", "7"), ("release_id", release.as_str())];

    let columns_of_table: &[(&str, &str)] = match table {
        Table::Release => {
            return tuple(
                table,
                &[("id", &release), ("label_id", &label), ("title", "A title")],
            );
        }
        Table::TranscoderQueue => return tuple(table, &[("id", "7"), ("track_id", &track)]),
        Table::Payment => {
            let row = [
                ("id", "7"),
                ("user_id", NAMES[tenant - 1]),
                ("invoice_number", "I-7"),
                ("total_due_usd", "1.10"),
            ];
            return tuple(table, &row);
        }
        Table::PreflightReport => &[
            ("profile_name", "strict"),
            ("profile_version", "1"),
            ("informational", "0"),
            ("requires_feedback", "0"),
        ],
        Table::StreamRadarFlag => &[
            ("dsp", "Music"),
            ("isrc", "X"),
            ("published_at", "2026-03-01 09:05:00+00"),
        ],
        _ => &[],
    };

    tuple(table, &[&of_release, columns_of_table].concat())
}

const NAMES: [&str; 2] = ["alice", "bob"];

#[derive(Clone, Debug)]
enum Action {
    /// Inserts or updates the row, with one value per column.
    Write([prop::sample::Index; 3]),
    Delete,
    Truncate,
}

#[derive(Clone, Debug)]
struct Step {
    table: Table,
    tenant: usize,
    action: Action,
}

fn step() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        12 => any::<[prop::sample::Index; 3]>().prop_map(Action::Write),
        2 => Just(Action::Delete),
        1 => Just(Action::Truncate),
    ];
    (prop::sample::select(&TABLES[..]), 1..=2_usize, action).prop_map(|(table, tenant, action)| {
        Step {
            table,
            tenant,
            action,
        }
    })
}

/// The replica identity: which old values an update contains.
#[derive(Clone, Copy, Debug)]
enum Identity {
    Full,
    /// The id and the watched columns, and only if a watched column changed.
    Index,
}

/// A row of the oracle: the values of the written columns.
type Row = Vec<Value>;

/// Applies steps to rows, and produces the changes that the server would send.
struct History {
    identity: Identity,
    rows: HashMap<(Table, usize), Row>,
}

impl History {
    fn apply(&mut self, step: &Step) -> Option<(Change, Option<Row>, Option<Row>)> {
        let key = (step.table, step.tenant);
        let before = self.rows.get(&key).cloned();
        let old = before
            .as_ref()
            .map(|row| full(step.table, step.tenant, row));

        let operation = match &step.action {
            Action::Write(picks) => {
                let columns = written(step.table).iter();
                let row: Row = columns
                    .zip(picks)
                    .map(|((_, values), pick)| *pick.get(values))
                    .collect();
                let new = full(step.table, step.tenant, &row);

                self.rows.insert(key, row);

                match old {
                    None => Operation::Insert { new },
                    Some(old) => Operation::Update {
                        old: self.old_values(step.table, old, &new),
                        new,
                    },
                }
            }
            Action::Delete => {
                self.rows.remove(&key);
                Operation::Delete { old: old? }
            }
            Action::Truncate => {
                self.rows.retain(|(table, _), _| *table != step.table);
                Operation::Truncate
            }
        };

        let after = self.rows.get(&key).cloned();
        Some((change(step.table, operation), before, after))
    }

    fn old_values(&self, table: Table, mut old: Tuple, new: &Tuple) -> Option<Tuple> {
        let watched = || {
            table
                .watched()
                .iter()
                .map(|name| table.column(name).unwrap())
        };

        match self.identity {
            Identity::Full => Some(old),
            Identity::Index if watched().all(|column| old.get(column) == new.get(column)) => None,
            Identity::Index => {
                for name in table
                    .columns()
                    .iter()
                    .filter(|name| **name != "id" && !table.watched().contains(name))
                {
                    old.set(table.column(name).unwrap(), Datum::Absent);
                }

                Some(old)
            }
        }
    }
}

fn full(table: Table, tenant: usize, row: &Row) -> Tuple {
    let columns = written(table).iter().zip(row);
    columns.fold(constants(table, tenant), |tuple, ((column, _), value)| {
        with(table, &tuple, column, *value)
    })
}

/// The oracle: returns the events that a step from `before` to `after` must raise.
fn expected(table: Table, before: Option<&Row>, after: &Row, addons: bool) -> Vec<EventKind> {
    let changed = |column: usize| before.is_none_or(|before| before[column] != after[column]);
    let was = |column: usize| before.and_then(|before| before[column]);
    let mut events = Vec::new();

    match table {
        Table::Release => {
            let known = |status: Value| status.is_some_and(|status| status != "limbo");
            if changed(0) && before.is_some() && known(was(0)) && known(after[0]) {
                events.push(EventKind::ReleaseReviewStatusChanged);
            }

            if changed(1) && after[1] == Some("distributed") {
                events.push(EventKind::ReleaseDistributed);
            }
        }
        Table::DistroQueue if changed(0) => {
            match (after[0], after[1]) {
                (Some("complete"), Some("t")) => events.push(EventKind::TakedownCompleted),
                (Some("complete"), _) => events.push(EventKind::DeliveryCompleted),
                (Some("error" | "fault" | "rejected" | "batch_exception"), _) => {
                    events.push(EventKind::DeliveryFailed)
                }
                _ => {}
            }

            events.extend(after[0].map(|_| EventKind::DistributionOutletStatusChanged));
        }
        Table::TranscoderQueue if changed(0) => match after[0] {
            Some("complete") => events.push(EventKind::TranscodeCompleted),
            Some("error" | "incomplete") => events.push(EventKind::TranscodeFailed),
            _ => {}
        },
        Table::Payment if changed(0) && after[0] == Some("ready") => {
            events.push(EventKind::PaymentStatementReady)
        }
        Table::PreflightReport if addons && changed(0) && after[0].is_some() => {
            events.push(EventKind::ReleasePreflightReportReady);
        }
        Table::StreamRadarFlag if addons && changed(0) => match (was(0), after[0]) {
            (_, Some("active")) => events.push(EventKind::StreamRadarFlagCreated),
            (Some("active"), Some("resolved")) => events.push(EventKind::StreamRadarFlagResolved),
            _ => {}
        },
        _ => {}
    }

    events
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn histories_raise_exactly_the_expected_events_for_their_owners(
        steps in vec(step(), 1..60),
        identity in prop::sample::select(&[Identity::Full, Identity::Index][..]),
        addons in any::<bool>(),
    ) {
        let validators: Vec<_> = CATALOGUE.iter().map(|rule| validator(rule)).collect();
        let facts = FakeFacts::default();

        facts.without_addons.set(!addons);
        let mut history = History { identity, rows: HashMap::new() };

        for step in steps {
            let Some((change, before, after)) = history.apply(&step) else { continue };
            let oracle = match &after {
                Some(after) => expected(step.table, before.as_ref(), after, addons),
                None => Vec::new(),
            };

            let mut raised = Vec::new();

            for (rule, validator) in CATALOGUE.iter().zip(&validators).filter(|(rule, _)| rule.table == step.table) {
                match facts.derive(rule.kind, &change) {
                    Ok(derived) => {
                        prop_assert_eq!(&derived.owner, &user(NAMES[step.tenant - 1]));
                        assert_valid(validator, &derived.data);
                        raised.push(rule.kind);
                    }
                    Err(NoEvent::NotApplicable | NoEvent::Ignored(_)) => {}
                    Err(reason) => prop_assert!(false, "{}: {:?}", rule.kind, reason),
                }
            }

            prop_assert_eq!(raised, oracle, "{:?}", change);
        }
    }
}
