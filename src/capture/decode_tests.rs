use bytes::Bytes;
use pg_walstream::Lsn as WireLsn;

use super::*;
use crate::config::{Sources, load};
use crate::domain::table::{distro_queue, user_addon};

const RELATION: u32 = 41;

fn source(settings: &str) -> Source {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), settings).unwrap();
    load(Sources { file: Some(file.path().to_owned()), ..Sources::default() }).unwrap().source
}

fn event(event_type: EventType) -> ChangeEvent {
    ChangeEvent { event_type, lsn: WireLsn::new(1), metadata: None, xid: None }
}

fn begin(commit: u64) -> EventType {
    EventType::Begin { transaction_id: 9, final_lsn: WireLsn::new(commit), commit_timestamp: Default::default() }
}

fn commit(commit: u64, end: u64) -> EventType {
    EventType::Commit {
        commit_timestamp: Default::default(),
        commit_lsn: WireLsn::new(commit),
        end_lsn: WireLsn::new(end),
    }
}

fn relation(schema: &str, name: &str, columns: &[&str]) -> EventType {
    let column =
        |name: &&str| RelationColumn { name: Arc::from(*name), type_id: 25, type_modifier: -1, is_key: *name == "id" };
    EventType::Relation {
        relation_id: RELATION,
        namespace: schema.into(),
        relation_name: name.into(),
        replica_identity: ReplicaIdentity::Full,
        columns: columns.iter().map(column).collect(),
    }
}

fn row(values: &[(&str, Option<&str>)]) -> RowData {
    let value = |text: &Option<&str>| text.map_or(ColumnValue::Null, ColumnValue::text);
    RowData::from_pairs(values.iter().map(|(name, text)| (*name, value(text))).collect())
}

fn insert(values: &[(&str, Option<&str>)]) -> EventType {
    EventType::Insert { schema: "".into(), table: "".into(), relation_oid: RELATION, data: row(values) }
}

fn update(
    old: Option<&[(&str, Option<&str>)]>,
    new: &[(&str, Option<&str>)],
    identity: ReplicaIdentity,
    key: &[&str],
) -> EventType {
    EventType::Update {
        schema: "".into(),
        table: "".into(),
        relation_oid: RELATION,
        old_data: old.map(row),
        new_data: row(new),
        replica_identity: identity,
        key_columns: key.iter().map(|name| Arc::from(*name)).collect(),
    }
}

fn message(flags: u8, prefix: &str, content: &'static str) -> EventType {
    EventType::Message {
        flags,
        message_lsn: WireLsn::new(1),
        prefix: prefix.into(),
        content: Bytes::from_static(content.as_bytes()),
    }
}

const DISTRO_QUEUE: [&str; 6] = ["id", "release_id", "outlet_id", "status", "takedown", "message"];

/// Decodes the events one after the other inside of one transaction.
fn changes(source: &Source, events: Vec<EventType>) -> Vec<Change> {
    let mut decoder = Decoder::new(source, HashMap::new());
    let mut changes = Vec::new();
    decoder.decode(event(begin(100)), &mut changes).unwrap();
    for each in events {
        decoder.decode(event(each), &mut changes).unwrap();
    }
    changes
}

#[test]
fn names_and_values_are_mapped() {
    let source = source(
        r#"
        [source.tables.distro_queue]
        table = "shop.deliveries"
        columns = { status = "state", id = "delivery_id" }
        values.status = { 5 = "complete" }
        "#,
    );
    let columns = ["delivery_id", "release_id", "extra", "outlet_id", "state", "takedown", "message"];
    let found = changes(
        &source,
        vec![
            relation("shop", "deliveries", &columns),
            insert(&[
                ("delivery_id", Some("7")),
                ("release_id", Some("1")),
                ("extra", Some("x")),
                ("state", Some("5")),
            ]),
            insert(&[("delivery_id", Some("8")), ("outlet_id", None), ("state", Some("6"))]),
        ],
    );
    let Operation::Insert { new } = &found[0].operation else { panic!("{found:?}") };
    assert_eq!((new.text(distro_queue::id), new.text(distro_queue::status)), (Some("7"), Some("complete")));
    assert_eq!(*new.get(distro_queue::message), Datum::Absent);
    let Operation::Insert { new } = &found[1].operation else { panic!("{found:?}") };
    assert_eq!((new.text(distro_queue::status), new.get(distro_queue::outlet_id)), (Some("6"), &Datum::Null));
    assert_eq!(found[1].position, Position { commit: Lsn(100), ordinal: 2 });
}

#[test]
fn rows_of_other_tables_count_and_are_left_out() {
    let mut events = vec![relation("public", "unknown", &["id"]), insert(&[("id", Some("1"))])];
    events.extend([relation("public", "distro_queue", &DISTRO_QUEUE), insert(&[("id", Some("1"))])]);
    let found = changes(&Source::default(), events);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].position.ordinal, 2);
}

#[test]
fn under_full_the_old_row_is_whole_and_gives_what_was_not_sent_again() {
    let old: &[_] = &[("id", Some("1")), ("outlet_id", None), ("status", Some("batched")), ("message", Some("long"))];
    let new: &[_] = &[("id", Some("1")), ("outlet_id", None), ("status", Some("complete"))];
    let found = changes(
        &Source::default(),
        vec![
            relation("public", "distro_queue", &DISTRO_QUEUE),
            update(Some(old), new, ReplicaIdentity::Full, &DISTRO_QUEUE),
        ],
    );
    let Operation::Update { old: Some(old), new } = &found[0].operation else { panic!("{found:?}") };
    assert_eq!((old.text(distro_queue::status), old.get(distro_queue::outlet_id)), (Some("batched"), &Datum::Null));
    assert_eq!((new.text(distro_queue::status), new.text(distro_queue::message)), (Some("complete"), Some("long")));
}

#[test]
fn under_a_key_other_old_columns_were_not_sent_though_they_read_as_null() {
    let old: &[_] = &[("id", Some("1")), ("outlet_id", None), ("status", Some("batched")), ("message", None)];
    let new: &[_] = &[("id", Some("1")), ("outlet_id", Some("4")), ("status", Some("complete"))];
    let relation = relation("public", "distro_queue", &DISTRO_QUEUE);
    let key = ["id", "status"];
    let found = changes(
        &Source::default(),
        vec![
            relation,
            update(Some(old), new, ReplicaIdentity::Index, &key),
            update(None, new, ReplicaIdentity::Index, &key),
        ],
    );
    let Operation::Update { old: Some(old), new } = &found[0].operation else { panic!("{found:?}") };
    assert_eq!((old.text(distro_queue::status), old.get(distro_queue::outlet_id)), (Some("batched"), &Datum::Absent));
    assert_eq!(*new.get(distro_queue::message), Datum::Absent, "the old key knows nothing of it");
    assert!(matches!(&found[1].operation, Operation::Update { old: None, .. }));
}

#[test]
fn deletes_of_looked_up_tables_come_with_their_key() {
    let delete = EventType::Delete {
        schema: "".into(),
        table: "".into(),
        relation_oid: RELATION,
        old_data: row(&[("user_id", Some("3")), ("addon", Some("preflight_qc"))]),
        replica_identity: ReplicaIdentity::Default,
        key_columns: vec!["user_id".into(), "addon".into()],
    };
    let found = changes(&Source::default(), vec![relation("public", "user_addon", &["user_id", "addon"]), delete]);
    let Operation::Delete { old } = &found[0].operation else { panic!("{found:?}") };
    assert_eq!((found[0].table, old.text(user_addon::user_id)), (Table::UserAddon, Some("3")));
}

#[test]
fn what_is_computed_is_not_read_from_the_log_and_what_is_absent_is_passed_over() {
    let source = source(
        r#"
        [source.tables.distro_queue]
        computed = { message = "this.code || ': ' || this.detail" }
        [source.tables.payment]
        absent = true
        [source.lookups]
        outlet = "select 1 as id, 'x' as name where '1' = any($1)"
        "#,
    );
    let mut without_message = DISTRO_QUEUE.to_vec();
    without_message.pop();
    for columns in [without_message.as_slice(), &DISTRO_QUEUE] {
        let row: Vec<(&str, Option<&str>)> = columns.iter().map(|column| (*column, Some("1"))).collect();
        let found = changes(&source, vec![relation("public", "distro_queue", columns), insert(&row)]);
        let Operation::Insert { new } = &found[0].operation else { panic!("{found:?}") };
        assert_eq!((new.text(distro_queue::status), new.get(distro_queue::message)), (Some("1"), &Datum::Absent));
    }
    for name in ["payment", "outlet"] {
        let found = changes(&source, vec![relation("public", name, &["id"]), insert(&[("id", Some("1"))])]);
        assert!(found.is_empty(), "a table of another meaning: {found:?}");
    }
}

#[test]
fn a_mute_covers_the_rest_of_its_transaction_alone() {
    let mut decoder = Decoder::new(&Source::default(), HashMap::new());
    let mut found = Vec::new();
    let rows = || insert(&[("id", Some("1"))]);
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
        decoder.decode(event(each), &mut found).unwrap();
    }
    assert_eq!(found.iter().map(|change| change.muted).collect::<Vec<_>>(), [false, false, true, false]);
}

#[test]
fn heartbeats_come_back_by_their_id_and_commits_with_their_end() {
    let mut decoder = Decoder::new(&Source::default(), HashMap::new());
    let mut none = Vec::new();
    assert_eq!(decoder.decode(event(begin(100)), &mut none).unwrap(), Decoded::Began);
    let heartbeat = decoder.decode(event(message(1, "walhook", "heartbeat a-1")), &mut none).unwrap();
    assert_eq!(heartbeat, Decoded::Heartbeat("a-1".into()));
    let committed = decoder.decode(event(commit(100, 110)), &mut none).unwrap();
    assert_eq!(committed, Decoded::Committed { commit: Lsn(100), end: Lsn(110) });
    assert!(decoder.open().is_none() && none.is_empty());
}

#[test]
fn truncated_tables_each_have_a_position() {
    let truncate = EventType::Truncate {
        tables: vec!["public.label".into(), "public.unknown".into(), "public.release".into()],
        cascade: false,
        restart_identity: false,
    };
    let found = changes(&Source::default(), vec![truncate]);
    let found: Vec<_> = found.iter().map(|change| (change.table, change.position.ordinal)).collect();
    assert_eq!(found, [(Table::Label, 1), (Table::Release, 3)]);
}

#[test]
fn a_column_that_is_gone_is_named_by_the_platforms_name() {
    let mut decoder = Decoder::new(&Source::default(), HashMap::new());
    let without_status = relation("public", "distro_queue", &["id", "release_id", "outlet_id", "takedown", "message"]);
    let error = decoder.decode(event(without_status), &mut Vec::new()).unwrap_err();
    assert!(error.to_string().starts_with("column status of public.distro_queue is gone: "), "{error}");
    assert!(!error.is_transient());
    // An address is needed for e-mail alone.
    decoder.decode(event(relation("public", "app_user", &["id"])), &mut Vec::new()).unwrap();
}

#[test]
fn rows_outside_of_a_transaction_are_refused() {
    let mut decoder = Decoder::new(&Source::default(), HashMap::new());
    assert!(decoder.decode(event(insert(&[])), &mut Vec::new()).is_err());
    assert!(decoder.decode(event(commit(1, 2)), &mut Vec::new()).is_err());
}
