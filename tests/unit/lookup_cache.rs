//! Tests of the cache of looked-up rows.

use super::*;
use crate::domain::position::Position;
use crate::domain::text::MAX_BODY;

fn row(table: Table, values: &[(&str, &str)]) -> Tuple {
    let mut row = Tuple::absent(table);

    for (name, value) in values {
        row.set(table.column(name).expect("a column"), Datum::text(*value));
    }

    row
}

fn release(id: i64, title: Option<&str>) -> Tuple {
    let values = [
        ("id", &*id.to_string()),
        ("label_id", "7"),
        ("cat", "C"),
        ("pre_review_hold", "t"),
    ];

    let mut row = row(Table::Release, &values);

    if let Some(title) = title {
        row.set(release::title, Datum::text(title));
    }

    row
}

fn insert(new: Tuple) -> Operation {
    Operation::Insert { new }
}

fn update(new: Tuple) -> Operation {
    Operation::Update { old: None, new }
}

/// Applies operations. Returns what the store has to change.
fn follow(
    cache: &mut Cache,
    table: Table,
    operations: impl IntoIterator<Item = Operation>,
) -> LedgerChanges {
    let mut changes = LedgerChanges::default();

    for operation in operations {
        let position = Position::Outbox {
            window: 1,
            transaction: 1,
            ordinal: 1,
        };

        let committed_at = jiff::Timestamp::UNIX_EPOCH;
        cache.follow(
            &Change {
                position,
                committed_at,
                muted: false,
                table,
                operation,
            },
            &mut changes,
        );
    }

    changes
}

#[test]
fn between_batches_rows_are_bounded_by_their_size() {
    let mut cache = Cache::default();
    let known = |cache: &Cache| {
        (1..=640)
            .filter(|id| cache.release(*id).is_some())
            .collect::<Vec<_>>()
    };

    // More of a title is not kept.
    let title = "x".repeat(MAX_BODY + 7);
    follow(
        &mut cache,
        Table::Release,
        (1..=640).map(|id| insert(release(id, Some(&title)))),
    );
    assert_eq!(
        known(&cache).len(),
        640,
        "a batch keeps all rows that it needs"
    );

    assert_eq!(
        cache
            .release(640)
            .flatten()
            .and_then(|row| row.title.as_ref().map(String::len)),
        Some(MAX_BODY)
    );

    cache.begin();
    assert!(known(&cache).is_empty(), "all are read again");
}

#[test]
fn values_that_were_not_sent_keep_their_former_value() {
    let mut cache = Cache::default();
    let changes = follow(&mut cache, Table::Release, [update(release(1, None))]);

    assert!(
        cache.release(1).is_none() && changes.is_empty(),
        "its title is unknown"
    );
    follow(&mut cache, Table::Release, [insert(release(1, Some("a")))]);

    let changes = follow(&mut cache, Table::Release, [update(release(1, None))]);
    assert!(changes.is_empty(), "nothing has changed");

    let known = cache.release(1).flatten().expect("known");
    assert_eq!(
        (
            known.label_id,
            known.title.as_deref(),
            known.pre_review_hold
        ),
        (7, Some("a"), true)
    );
}

#[test]
fn a_row_that_is_fetched_is_older_than_one_that_the_stream_has_shown() {
    let mut cache = Cache::default();
    follow(
        &mut cache,
        Table::Release,
        [insert(release(1, Some("new")))],
    );
    cache.fetched(Table::Release, &[1, 2], &[release(1, Some("old"))]);

    assert_eq!(
        cache
            .release(1)
            .flatten()
            .and_then(|release| release.title.clone())
            .as_deref(),
        Some("new")
    );

    assert!(matches!(cache.release(2), Some(None)));

    follow(
        &mut cache,
        Table::Release,
        [Operation::Delete {
            old: row(Table::Release, &[("id", "1")]),
        }],
    );

    assert!(
        matches!(cache.release(1), Some(Some(_))),
        "later events may refer to it"
    );
}
