use pg_walstream::encode_message_to_bytes;

use super::*;
use crate::domain::change::Datum;
use crate::domain::table::distro_queue;

const RELATION: u32 = 41;

/// Encodes a message as the server sends it.
fn wire(message: &Message) -> Bytes {
    encode_message_to_bytes(message, PROTOCOL_VERSION as u8).freeze()
}

fn begin(commit: u64) -> Message {
    Message::Begin {
        xid: 9,
        final_lsn: commit,
        timestamp: 0,
    }
}

fn commit(commit: u64, end: u64) -> Message {
    Message::Commit {
        flags: 0,
        commit_lsn: commit,
        end_lsn: end,
        timestamp: 0,
    }
}

fn keyed_relation(
    schema: &str,
    name: &str,
    columns: &[&str],
    key: &[&str],
    identity: u8,
) -> Message {
    let column =
        |name: &&str| ColumnInfo::new(u8::from(key.contains(name)), (*name).to_owned(), 25, -1);
    Message::Relation {
        relation_id: RELATION,
        namespace: schema.into(),
        relation_name: name.into(),
        replica_identity: identity,
        columns: columns.iter().map(column).collect(),
    }
}

fn relation(schema: &str, name: &str, columns: &[&str]) -> Message {
    keyed_relation(schema, name, columns, &["id"], b'f')
}

/// A value as it is sent.
#[derive(Clone, Copy)]
enum Value {
    Null,
    Text(&'static str),
}
use Value::{Null, Text};

fn row(values: &[Value]) -> TupleData {
    let column = |value: &Value| match value {
        Null => ColumnData::null(),
        Text(text) => ColumnData::text(text.as_bytes().to_vec()),
    };
    TupleData::new(values.iter().map(column).collect())
}

fn insert(values: &[Value]) -> Message {
    Message::Insert {
        relation_id: RELATION,
        tuple: row(values),
    }
}

fn message(flags: u8, prefix: &str, content: &'static str) -> Message {
    Message::Message {
        flags,
        lsn: 1,
        prefix: prefix.into(),
        content: Bytes::from_static(content.as_bytes()),
    }
}

const DISTRO_QUEUE: [&str; 6] = [
    "id",
    "release_id",
    "outlet_id",
    "status",
    "takedown",
    "message",
];
const ROW: [Value; 6] = [
    Text("1"),
    Text("2"),
    Text("3"),
    Text("batched"),
    Text("f"),
    Null,
];

fn decoder(source: &Source) -> Decoder {
    Decoder::new(
        source,
        HashMap::new(),
        TimelineHistory::new(2, vec![(1, Lsn(50))]),
    )
}

/// Decodes the messages in one transaction.
fn changes(source: &Source, events: Vec<Message>) -> Vec<Change> {
    let mut decoder = decoder(source);
    let mut changes = Vec::new();

    decoder.decode(wire(&begin(100)), &mut changes).unwrap();

    for each in events {
        decoder.decode(wire(&each), &mut changes).unwrap();
    }

    changes
}

#[test]
fn a_mute_message_mutes_the_rest_of_its_transaction_only() {
    let mut decoder = decoder(&Source::default());
    let mut found = Vec::new();
    let rows = || insert(&ROW);

    let events = [
        begin(100),
        relation("public", "distro_queue", &DISTRO_QUEUE),
        rows(),
        message(1, "other", "mute"),
        message(0, "walhook", "mute"),
        rows(),
        message(1, "walhook", "mute"),
        rows(),
        commit(100, 110),
        begin(120),
        rows(),
    ];
    for each in events {
        decoder.decode(wire(&each), &mut found).unwrap();
    }

    assert_eq!(
        found.iter().map(|change| change.muted).collect::<Vec<_>>(),
        [false, false, true, false]
    );
}

#[test]
fn heartbeats_have_an_id_and_commits_have_an_end() {
    let mut decoder = decoder(&Source::default());
    let mut none = Vec::new();

    assert_eq!(
        decoder.decode(wire(&begin(100)), &mut none).unwrap(),
        Decoded::Began
    );
    let heartbeat = decoder
        .decode(wire(&message(1, "walhook", "heartbeat a-1")), &mut none)
        .unwrap();

    assert_eq!(heartbeat, Decoded::Heartbeat("a-1".into()));
    let committed = decoder.decode(wire(&commit(100, 110)), &mut none).unwrap();
    assert_eq!(
        committed,
        Decoded::Committed {
            commit: Lsn(100),
            end: Lsn(110)
        }
    );

    assert!(decoder.open().is_none() && none.is_empty());
}

#[test]
fn truncated_tables_each_have_a_position() {
    let of = |number: u32, name: &str, columns: &[&str]| match relation("public", name, columns) {
        Message::Relation {
            namespace,
            relation_name,
            replica_identity,
            columns,
            ..
        } => Message::Relation {
            relation_id: number,
            namespace,
            relation_name,
            replica_identity,
            columns,
        },
        other => other,
    };

    let found = changes(
        &Source::default(),
        vec![
            of(1, "label", &["id", "user_id"]),
            of(2, "unknown", &["id"]),
            of(3, "track", &["id", "release_id"]),
            Message::Truncate {
                relation_ids: vec![1, 2, 3],
                flags: 0,
            },
        ],
    );

    let found: Vec<_> = found
        .iter()
        .map(|change| (change.table, change.position.ordinal()))
        .collect();
    assert_eq!(found, [(Table::Label, 1), (Table::Track, 3)]);
}

#[test]
fn a_missing_column_is_reported_by_the_platforms_name() {
    let mut decoder = decoder(&Source::default());
    let without_status = relation(
        "public",
        "distro_queue",
        &["id", "release_id", "outlet_id", "takedown", "message"],
    );
    let error = decoder
        .decode(wire(&without_status), &mut Vec::new())
        .unwrap_err();

    assert!(
        error
            .to_string()
            .starts_with("column status of public.distro_queue is gone: "),
        "{error}"
    );

    assert!(!error.is_transient());

    // Only e-mail needs the address.
    decoder
        .decode(
            wire(&relation("public", "app_user", &["id"])),
            &mut Vec::new(),
        )
        .unwrap();
}

#[test]
fn rows_outside_of_a_transaction_are_rejected() {
    let mut decoder = decoder(&Source::default());
    assert!(
        decoder
            .decode(wire(&insert(&ROW)), &mut Vec::new())
            .is_err()
    );
    assert!(
        decoder
            .decode(wire(&commit(1, 2)), &mut Vec::new())
            .is_err()
    );
}

#[test]
fn a_commits_time_is_counted_from_the_year_2000() {
    let mut decoder = decoder(&Source::default());
    let begin = Message::Begin {
        xid: 9,
        final_lsn: 100,
        timestamp: 825_670_800_123_456,
    };

    decoder.decode(wire(&begin), &mut Vec::new()).unwrap();
    assert_eq!(
        decoder.open().unwrap().committed_at,
        "2026-03-01T09:00:00.123456Z".parse().unwrap()
    );
}

#[test]
fn a_row_with_other_columns_than_described_is_rejected() {
    let mut decoder = decoder(&Source::default());
    let mut none = Vec::new();

    decoder.decode(wire(&begin(100)), &mut none).unwrap();
    decoder
        .decode(
            wire(&relation("public", "distro_queue", &DISTRO_QUEUE)),
            &mut none,
        )
        .unwrap();

    assert!(decoder.decode(wire(&insert(&ROW[..5])), &mut none).is_err());
    assert!(none.is_empty());
}

fn delete(key_type: char, old: &[Value]) -> Message {
    Message::Delete {
        relation_id: RELATION,
        old_tuple: row(old),
        key_type,
    }
}

/// Returns the old and the new status of a replaced row. None for other changes.
fn replaced(change: &Change) -> Option<(Option<&str>, Option<&str>)> {
    let Operation::Replace { old, new } = &change.operation else {
        return None;
    };

    assert_eq!(old.text(distro_queue::id), new.text(distro_queue::id));
    Some((
        old.text(distro_queue::status),
        new.text(distro_queue::status),
    ))
}

#[test]
fn with_the_default_identity_old_watched_values_are_unknown() {
    let table = keyed_relation("public", "distro_queue", &DISTRO_QUEUE, &["id"], b'd');
    let deleted = [Text("1"), Null, Null, Null, Null, Null];
    let found = changes(
        &Source::default(),
        vec![table, delete('K', &deleted), insert(&ROW)],
    );

    assert_eq!(replaced(&found[1]), Some((None, Some("batched"))));
    let Operation::Replace { old, .. } = &found[1].operation else {
        panic!("{found:?}")
    };

    assert_eq!(
        *old.get(distro_queue::status),
        Datum::Absent,
        "so that no rule sees a transition"
    );
}

/// Returns the description of a partition with this key.
fn partition(key: &[&str], identity: u8) -> Message {
    let table = keyed_relation("public", "part", &DISTRO_QUEUE, key, identity);
    let Message::Relation {
        namespace,
        relation_name,
        columns,
        ..
    } = table
    else {
        panic!("{table:?}")
    };

    Message::Relation {
        relation_id: RELATION + 1,
        namespace,
        relation_name,
        replica_identity: identity,
        columns,
    }
}

#[test]
fn values_outside_of_a_partitions_key_are_unknown() {
    const KEY: [Value; 6] = [Text("1"), Null, Null, Null, Null, Null];
    let table = || relation("public", "distro_queue", &DISTRO_QUEUE);
    let old_status = |described: Vec<Message>, old: &[Value]| {
        let messages = [described, vec![delete('O', old)]].concat();
        let found = changes(&Source::default(), messages);
        let (old, _) = found[0].operation.rows();
        old.unwrap().get(distro_queue::status).clone()
    };

    let default = || partition(&["id"], b'd');
    let full = || partition(&["id"], b'f');
    assert_eq!(old_status(vec![table(), default()], &KEY), Datum::Absent);
    assert_eq!(
        old_status(vec![table(), default(), table()], &KEY),
        Datum::Absent,
        "the table is described again"
    );

    // Of another partition.
    let row = [Text("1"), Text("2"), Null, Null, Null, Null];
    assert_eq!(old_status(vec![table(), default()], &row), Datum::Null);

    let altered = vec![table(), default(), table(), full()];
    assert_eq!(old_status(altered, &KEY), Datum::Null);

    let other = keyed_relation("public", "other", &["id"], &["id"], b'd');
    assert_eq!(old_status(vec![other, table()], &KEY), Datum::Null);
}

#[test]
fn a_long_value_is_unknown_if_a_partitions_key_lacks_it() {
    let mut new = row(&ROW);
    new.columns[5] = ColumnData::unchanged();

    let old = [Text("1"), Null, Null, Text("error"), Null, Null];
    let update = Message::Update {
        relation_id: RELATION,
        old_tuple: Some(row(&old)),
        new_tuple: new,
        key_type: Some('O'),
    };
    let table = relation("public", "distro_queue", &DISTRO_QUEUE);
    let partition = partition(&["id", "status"], b'i');
    let found = changes(&Source::default(), vec![table, partition, update]);
    let (old, new) = found[0].operation.rows();

    assert_eq!(old.unwrap().text(distro_queue::status), Some("error"));
    assert_eq!(*new.unwrap().get(distro_queue::message), Datum::Absent);
}

#[test]
fn an_identity_that_is_insufficient_loses_changes_and_none_at_all_loses_nothing() {
    let decode = |key: &[&str]| {
        let table = keyed_relation("public", "distro_queue", &DISTRO_QUEUE, key, b'd');
        decoder(&Source::default())
            .decode(wire(&table), &mut Vec::new())
            .unwrap()
    };

    assert_eq!(
        decode(&["id"]),
        Decoded::IdentityLost {
            table: "public.distro_queue".into()
        }
    );

    assert_eq!(decode(&["id", "status"]), Decoded::TableDescribed);
    assert_eq!(decode(&[]), Decoded::TableDescribed);
}

/// Returns a mapping by which only rows without a message raise events.
fn without_message() -> Source {
    let tables = serde_json::json!({
        "distro_queue": { "only": { "message": "null" }, "extra": { "note": "message" } },
    });
    Source {
        tables: serde_json::from_value(tables).unwrap(),
        ..Source::default()
    }
}

#[test]
fn a_row_that_is_moved_enters_or_leaves_the_condition() {
    let with = |message| [ROW[0], ROW[1], ROW[2], ROW[3], ROW[4], message];
    let within = |old, new| {
        let table = relation("public", "distro_queue", &DISTRO_QUEUE);
        let moved = vec![table, delete('O', &with(old)), insert(&with(new))];
        let found = changes(&without_message(), moved);
        let seen = found.iter().map(|change| {
            change.within().map(|change| match change.operation {
                Operation::Insert { .. } => "insert",
                Operation::Replace { .. } => "replace",
                Operation::Delete { .. } => "delete",
                _ => "other",
            })
        });
        seen.collect::<Vec<_>>()
    };

    let [inside, outside] = [Null, Text("hidden")];
    assert_eq!(within(inside, inside), [Some("delete"), Some("replace")]);
    assert_eq!(within(outside, inside), [None, Some("insert")]);
    assert_eq!(within(inside, outside), [Some("delete"), Some("delete")]);
    assert_eq!(within(outside, outside), [None, None]);
}

#[test]
fn an_unchanged_long_value_is_that_of_the_old_row() {
    let update = |key_type| {
        let mut new = row(&ROW);
        new.columns[5] = ColumnData::unchanged();
        let long = [ROW[0], ROW[1], ROW[2], Text("error"), ROW[4], Text("long")];

        let table = relation("public", "distro_queue", &DISTRO_QUEUE);
        let update = Message::Update {
            relation_id: RELATION,
            old_tuple: Some(row(&long)),
            new_tuple: new,
            key_type: Some(key_type),
        };
        let found = changes(&without_message(), vec![table, update]);
        let (_, new) = found[0].operation.rows();
        new.unwrap().clone()
    };

    let full = update('O');
    assert!(full.is_outside);
    assert_eq!(full.extra.get("note"), Some("\"long\""));
    assert_eq!(full.text(distro_queue::message), Some("long"));

    // Null there means that it was not sent.
    let key = update('K');
    assert_eq!((key.is_outside, key.extra.get("note")), (false, None));
    assert_eq!(*key.get(distro_queue::message), Datum::Absent);
}

#[test]
fn the_columns_of_a_condition_must_be_sent_and_be_part_of_the_identity() {
    let decode = |columns: &[&str], key: &[&str]| {
        let table = keyed_relation("public", "distro_queue", columns, key, b'i');
        decoder(&without_message()).decode(wire(&table), &mut Vec::new())
    };

    let error = decode(&DISTRO_QUEUE[..5], &["id", "status"]).unwrap_err();
    assert!(error.is_drift(), "{error}");
    assert!(matches!(
        decode(&DISTRO_QUEUE, &["id", "status"]),
        Ok(Decoded::IdentityLost { .. })
    ));
    assert_eq!(
        decode(&DISTRO_QUEUE, &["id", "status", "message"]).unwrap(),
        Decoded::TableDescribed
    );
}

#[test]
fn rows_of_different_transactions_are_not_paired() {
    let mut decoder = decoder(&Source::default());
    let mut found = Vec::new();
    let table = relation("public", "distro_queue", &DISTRO_QUEUE);
    for each in [
        begin(100),
        table,
        delete('O', &ROW),
        commit(100, 110),
        begin(120),
        insert(&ROW),
    ] {
        decoder.decode(wire(&each), &mut found).unwrap();
    }

    assert_eq!(found.iter().map(replaced).collect::<Vec<_>>(), [None, None]);
}

#[test]
fn a_position_has_the_timeline_on_which_the_change_was_committed() {
    let mut decoder = decoder(&Source::default());
    let mut changes = Vec::new();

    decoder
        .decode(
            wire(&relation("public", "distro_queue", &DISTRO_QUEUE)),
            &mut changes,
        )
        .unwrap();

    for (at, end) in [(49, 50), (50, 60)] {
        decoder.decode(wire(&begin(at)), &mut changes).unwrap();
        decoder.decode(wire(&insert(&ROW)), &mut changes).unwrap();
        decoder
            .decode(wire(&commit(at, end)), &mut changes)
            .unwrap();
    }

    let positions: Vec<Position> = changes.iter().map(|change| change.position).collect();
    let position = |timeline, commit| Position::Wal {
        timeline,
        commit: Lsn(commit),
        ordinal: 1,
    };

    assert_eq!(positions, [position(1, 49), position(2, 50)]);
}
