//! Captures one recorded workload in three ways, and compares the events with those of a model that
//! knows only the statements.

mod oracle;
mod shapes;
mod statements;
mod workload;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use self::oracle::{KeyChange, Model, RaisedEvent};
use self::workload::Workload;
use crate::support::versions::selected_or_latest;
use crate::support::{DEADLINE, TestApp, run_sql, server};
use walhook::private_postgres::{Options, PrivatePostgres};

const TRANSACTIONS: usize = 10_000;
const SEED: u64 = 20_260_301;
/// Transactions sent in one message, to save round trips.
const AT_ONCE: usize = 25;

/// Drops all foreign keys: the workload inserts and deletes rows in any order.
const WITHOUT_REFERENCES: &str = "do $$ declare found record; begin
    for found in select conrelid::regclass as name, conname from pg_constraint where contype = 'f' loop
        execute format('alter table %s drop constraint %I', found.name, found.conname);
    end loop;
end $$";

/// Replica identities by an index over the key and the watched columns. Long values of other
/// columns are stored inline, because the WAL would lack them.
const INDEXES: &str = "
    alter table preflight_report alter generated_at set not null;
    alter table release alter title set storage main, alter review_issues set storage main;
    alter table distro_queue alter message set storage main;
    create unique index a on release (id, review_status, delivery_status); alter table release replica identity using index a;
    create unique index b on distro_queue (id, status); alter table distro_queue replica identity using index b;
    create unique index c on transcoder_queue (id, status); alter table transcoder_queue replica identity using index c;
    create unique index d on payment (id, status); alter table payment replica identity using index d;
    create unique index e on preflight_report (id, generated_at); alter table preflight_report replica identity using index e;
    create unique index f on stream_radar_flag (id, status); alter table stream_radar_flag replica identity using index f";

/// Partitions tables by the columns that change most, so that rows move often. The primary keys
/// contain the watched columns, so they suffice as replica identities. Long values are stored
/// inline, as above.
const PARTITIONED: &str = "
    alter table preflight_report alter generated_at set not null;
    alter table release alter title set storage main, alter review_issues set storage main;
    alter table distro_queue alter message set storage main;
    do $$ declare part record; begin
        for part in select * from (values
            ('release', 'review_status', '''draft'', ''approved''', 'id, review_status, delivery_status'),
            ('distro_queue', 'status', '''complete'', ''error''', 'id, status'),
            ('transcoder_queue', 'status', '''waiting''', 'id, status'),
            ('payment', 'status', '''ready''', 'id, status'),
            ('stream_radar_flag', 'status', '''active''', 'id, status')) as found (name, watched, few, key)
        loop
            execute format('alter table %1$I rename to %1$s_before;
                create table %1$I (like %1$s_before including defaults including storage) partition by list (%2$I);
                create table %1$s_some partition of %1$I for values in (%3$s);
                create table %1$s_rest partition of %1$I default partition by hash (id);
                create table %1$s_leaf partition of %1$s_rest for values with (modulus 1, remainder 0);
                drop table %1$s_before; alter table %1$I add primary key (%4$s)', part.name, part.watched, part.few, part.key);
        end loop;
    end $$";
const WHOLE_OLD_ROWS: &str = "
    do $$ declare name regclass; begin
        for name in select oid from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') loop
            execute format('alter table %s replica identity full', name);
        end loop;
    end $$";

/// A primary that several sidecars may capture from.
async fn primary(server: &Arc<PrivatePostgres>, more: &str) -> TestApp {
    let app = TestApp::prepare_on(Arc::clone(server)).await;
    let source = app.source().await;

    run_sql(&source, WITHOUT_REFERENCES).await;
    run_sql(&source, more).await;
    app
}

async fn run(app: &TestApp, workload: &Workload) {
    let source = app.source().await;

    for statements in workload.transactions.chunks(AT_ONCE) {
        let result = source.batch_execute(&statements.concat()).await;
        result.unwrap_or_else(|error| panic!("{}", walhook::postgres::describe(&error)));
    }
}

/// Waits for the event of the last transaction, and returns all others in the store.
async fn stored_events(app: &TestApp) -> Vec<RaisedEvent> {
    let store = app.store().await;
    let count = "select count(*), count(*) filter (where kind = 'payment.statement_ready' and user_id = 'last') from walhook.event";
    let mut seen = -1;
    let mut since = tokio::time::Instant::now();

    loop {
        let row = store.query_one(count, &[]).await.unwrap();
        let (now, last): (i64, i64) = (row.get(0), row.get(1));
        if last == 1 {
            break;
        }

        // Progress is the signal; how fast it goes does not matter here.
        if now > seen {
            (seen, since) = (now, tokio::time::Instant::now());
        }

        assert!(since.elapsed() < DEADLINE, "no more than {seen} events");
        tokio::time::sleep(crate::support::POLL).await;
    }

    let query = "select kind, user_id, data::text from walhook.event where user_id <> 'last'";
    let rows = store.query(query, &[]).await.unwrap();
    let event = |row: &tokio_postgres::Row| RaisedEvent {
        kind: row.get(0),
        user: row.get(1),
        data: serde_json::from_str(row.get(2)).unwrap(),
    };

    rows.iter().map(event).collect()
}

fn assert_same(mode: &str, found: Vec<RaisedEvent>, expected: &[RaisedEvent]) {
    let mut counts: HashMap<String, i64> = HashMap::new();

    // Independent of the order of keys.
    let text = |event: &RaisedEvent| {
        let data: BTreeMap<_, _> = event.data.as_object().expect("an object").iter().collect();
        format!(
            "{} {} {}",
            event.kind,
            event.user,
            serde_json::to_string(&data).expect("JSON")
        )
    };

    expected
        .iter()
        .for_each(|event| *counts.entry(text(event)).or_default() += 1);
    found
        .iter()
        .for_each(|event| *counts.entry(text(event)).or_default() -= 1);

    let mut wrong: Vec<String> = counts
        .into_iter()
        .filter(|(_, count)| *count != 0)
        .map(|(event, count)| format!("{count:+}: {}", event.chars().take(300).collect::<String>()))
        .collect();
    wrong.sort();

    let shown = wrong.len().min(10);
    let all = wrong.len();

    assert!(
        wrong.is_empty(),
        "{mode}: {} events, {} expected, {all} differ (+ is missing, - is too many):\n{}",
        found.len(),
        expected.len(),
        wrong[..shown].join("\n")
    );
}

#[tokio::test]
async fn full_identity_index_identity_and_triggers_raise_the_same_events_as_the_model() {
    assert_all_raise_the_same(TRANSACTIONS, "", INDEXES).await;
}

#[tokio::test]
async fn rows_that_move_between_partitions_raise_the_same_events_as_the_model() {
    let full = format!("{PARTITIONED}; {WHOLE_OLD_ROWS}");
    assert_all_raise_the_same(TRANSACTIONS / 2, &full, PARTITIONED).await;
}

/// `full` and `index` prepare the two primaries; triggers capture from the first.
async fn assert_all_raise_the_same(transactions: usize, full: &str, index: &str) {
    let workload = Workload::record(SEED, transactions);
    let server = Arc::new(server(Options::default()).await);
    let mut full = primary(
        &server,
        &format!("alter table payment alter user_id type text; {full}"),
    )
    .await;
    let mut index = primary(
        &server,
        &format!("alter table payment alter user_id type text; {index}"),
    )
    .await;
    let mut triggers = TestApp::prepare_on(Arc::clone(&server)).await;
    let source_url = full.source_url.clone();

    triggers
        .set("source.url", &source_url)
        .set("source.capture", "trigger");

    for app in [&mut full, &mut index, &mut triggers] {
        app.setup().await;
        app.run_with(&["--roles", "capture"]).await;
    }

    tokio::join!(run(&full, &workload), run(&index, &workload));
    let expected = Model::replay(&workload, KeyChange::Update);

    println!("{} events of {transactions} transactions", expected.len());
    assert!(expected.len() > transactions / 2, "{}", expected.len());
    assert_same(
        "triggers",
        stored_events(&triggers).await,
        &Model::replay(&workload, KeyChange::DeleteAndInsert),
    );
    assert_same("full identity", stored_events(&full).await, &expected);
    assert_same("index identity", stored_events(&index).await, &expected);
}

/// For each shape.
const SHAPE_TRANSACTIONS: usize = 400;

/// Seeds that draw every type, and every layout with a primary key, without one, and with stored
/// and dropped columns.
#[tokio::test]
async fn tables_of_drawn_shapes_raise_the_same_events_as_the_model() {
    assert_shapes(&[1, 3, 17, 36]).await;
}

#[ignore = "for `make soak`"]
#[tokio::test]
async fn tables_of_many_drawn_shapes_raise_the_same_events_as_the_model() {
    assert_shapes(&Vec::from_iter(1..=40)).await;
}

/// On the selected version, or else on the latest one, which has the most kinds of columns. Tests
/// every seed before it fails.
async fn assert_shapes(seeds: &[u64]) {
    let (version, programs) = selected_or_latest().expect("an installed PostgreSQL");
    let mut failed = Vec::new();

    for &seed in seeds {
        let programs = programs.clone();
        let result =
            tokio::spawn(async move { assert_shape(seed, version, &programs).await }).await;
        if result.is_err() {
            failed.push(seed);
        }
    }

    assert!(failed.is_empty(), "seeds {failed:?} failed: see above");
}

/// Captures a workload from two primaries with tables of one shape. A repair afterwards must find
/// that nothing was missed.
async fn assert_shape(seed: u64, version: u32, programs: &std::path::Path) {
    let shape = shapes::draw(seed, version >= 18);
    let lines: Vec<String> = shape.iter().map(|table| format!("  {table}")).collect();

    println!("seed {seed}:\n{}", lines.join("\n"));
    let workload = Workload::record(seed, SHAPE_TRANSACTIONS);
    let server = server(Options {
        programs: Some(programs),
        ..Options::default()
    });
    let server = Arc::new(server.await);
    let tables = |inline: bool| {
        let tables: String = shape.iter().map(|table| table.statements(inline)).collect();
        format!("{}; {tables}", shapes::TYPES)
    };

    // Setup keeps a primary key that has the watched columns, and then the WAL lacks long values.
    let mut full = primary(&server, &format!("{}; {WHOLE_OLD_ROWS}", tables(false))).await;
    let mut index = primary(&server, &tables(true)).await;
    let mut triggers = primary(&server, &tables(false)).await;

    index.set("source.replica_identity", "index");
    triggers.set("source.capture", "trigger");

    for app in [&mut full, &mut index, &mut triggers] {
        app.setup().await;
        app.run_with(&["--roles", "capture"]).await;
    }

    tokio::join!(
        run(&full, &workload),
        run(&index, &workload),
        run(&triggers, &workload)
    );
    let updated = Model::replay(&workload, KeyChange::Update);
    let deleted_and_inserted = Model::replay(&workload, KeyChange::DeleteAndInsert);
    let all = [
        ("full identity", &mut full, &updated),
        ("index identity", &mut index, &updated),
        ("triggers", &mut triggers, &deleted_and_inserted),
    ];

    for (mode, app, expected) in all {
        let mode = format!("seed {seed}, {mode}");
        assert_same(&mode, stored_events(app).await, expected);
        assert!(app.stop().await.success(), "{mode}");

        let repair = app.walhook_ok(&["repair", "--dry-run", "--force"]).await;
        assert!(
            repair.contains(
                "would create 0 deliveries; 0 are for inactive webhooks, 0 events have no owner"
            ),
            "{mode}: {repair}"
        );

        // Each table with its numbers of rows, and of rows that have changed, are new, or are gone.
        let tables = repair
            .lines()
            .skip_while(|line| !line.starts_with("table"))
            .skip(1)
            .take_while(|line| !line.is_empty());
        let differ = tables
            .filter(|line| line.split_whitespace().skip(2).any(|number| number != "0"))
            .count();
        assert_eq!(differ, 0, "{mode}: {repair}");
    }
}
