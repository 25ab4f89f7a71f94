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

fn file(id: &str, entry: &str, status: &str) -> Tuple {
    let values = [
        ("id", id),
        ("transcoder_queue_id", entry),
        ("asset_type_id", "1"),
        ("status", status),
    ];
    row(Table::TranscoderQueueFile, &values)
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

fn statuses(cache: &Cache, entry: i64) -> Option<Vec<String>> {
    Some(
        cache
            .files(entry)?
            .iter()
            .map(|file| file.status.clone())
            .collect(),
    )
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

#[test]
fn a_release_without_a_label_has_no_owner() {
    let mut cache = Cache::default();
    let mut released = release(1, Some("a"));

    released.set(release::label_id, Datum::Null);
    follow(
        &mut cache,
        Table::Release,
        [insert(release(1, Some("a"))), update(released)],
    );
    assert!(matches!(cache.release(1), Some(None)));
}

#[test]
fn ids_that_are_not_canonical_are_other_rows() {
    let mut cache = Cache::default();
    let label = |id, user| insert(row(Table::Label, &[("id", id), ("user_id", user)]));
    follow(
        &mut cache,
        Table::Label,
        [label("100", "1"), label("0100", "2")],
    );
    assert_eq!(cache.label_owner(100), Some(Some(Some(UserId("1".into())))));
}

#[test]
fn files_follow_their_entry() {
    let mut cache = Cache::default();
    cache.files_fetched(
        &[5, 6],
        &[file("1", "5", "queued"), file("2", "5", "queued")],
    );
    assert_eq!(statuses(&cache, 5).unwrap(), ["queued", "queued"]);

    let key = row(Table::TranscoderQueueFile, &[("id", "2")]);
    let operations = [
        update(file("1", "5", "complete")),
        insert(file("3", "5", "error")),
        update(file("3", "6", "error")),
        Operation::Delete { old: key },
    ];

    follow(&mut cache, Table::TranscoderQueueFile, operations);
    assert_eq!(
        (statuses(&cache, 5).unwrap(), statuses(&cache, 6).unwrap()),
        (vec!["complete".into()], vec!["error".into()])
    );
    assert_eq!(statuses(&cache, 7), None);
    follow(
        &mut cache,
        Table::TranscoderQueueFile,
        [Operation::Truncate],
    );
    cache.files_fetched(&[5], &[file("1", "5", "queued")]);
    assert_eq!(
        statuses(&cache, 5).unwrap(),
        [""; 0],
        "the store has the rows of before the truncation"
    );
}

#[test]
fn one_of_two_rows_of_an_add_on_can_be_deleted() {
    let mut cache = Cache::default();
    let user = UserId("1".into());
    let addon = UserAddon {
        user: "1".into(),
        addon: "stream_radar".into(),
        copies: 2,
    };

    cache.addons_fetched(&["1".into()], &[addon]);
    let old = || {
        row(
            Table::UserAddon,
            &[("user_id", "1"), ("addon", "stream_radar")],
        )
    };

    for expected in [true, false] {
        follow(
            &mut cache,
            Table::UserAddon,
            [Operation::Delete { old: old() }],
        );
        assert_eq!(cache.has_addon(&user, Addon::StreamRadar), Some(expected));
    }
}
