//! One recorded workload, three ways of capturing it, one outcome: that of a model which knows the statements alone.

mod oracle;
mod statements;
mod workload;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use self::oracle::{KeyChange, Model, Told};
use self::workload::Workload;
use crate::support::{DEADLINE, TestApp};
use walhook::private_postgres::{Options, PrivatePostgres};

const TRANSACTIONS: usize = 10_000;
const SEED: u64 = 20_260_301;
/// Statements in one message: the number of round trips is none of what is shown here.
const AT_ONCE: usize = 25;

/// Rows come and go in any order here.
const WITHOUT_REFERENCES: &str = "do $$ declare found record; begin
    for found in select conrelid::regclass as name, conname from pg_constraint where contype = 'f' loop
        execute format('alter table %s drop constraint %I', found.name, found.conname);
    end loop;
end $$";

/// Old values by an index over key and watched columns. What such an identity leaves out is kept in the row here.
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

/// Partitioned by what changes most, so that rows move all the time. The keys tell the transitions: an index identity. Long values
/// stay in the row, as above.
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

/// A primary that several sidecars may watch.
async fn primary(server: &Arc<PrivatePostgres>, more: &str) -> TestApp {
    let app = TestApp::prepare_on(Arc::clone(server)).await;
    let source = app.source().await;
    source.batch_execute(WITHOUT_REFERENCES).await.unwrap();
    source.batch_execute(more).await.unwrap();
    app
}

async fn run(app: &TestApp, workload: &Workload) {
    let source = app.source().await;
    for statements in workload.transactions.chunks(AT_ONCE) {
        let result = source.batch_execute(&statements.concat()).await;
        result.unwrap_or_else(|error| panic!("{}", walhook::postgres::describe(&error)));
    }
}

/// What the store has in the end: the last transaction's event stands behind all others.
async fn told(app: &TestApp) -> Vec<Told> {
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
        // Going on is the signal; how fast is no matter here.
        if now > seen {
            (seen, since) = (now, tokio::time::Instant::now());
        }
        assert!(since.elapsed() < DEADLINE, "no more than {seen} events");
        tokio::time::sleep(crate::support::POLL).await;
    }
    let query = "select kind, user_id, data::text from walhook.event where user_id <> 'last'";
    let rows = store.query(query, &[]).await.unwrap();
    let told = |row: &tokio_postgres::Row| Told {
        kind: row.get(0),
        user: row.get(1),
        data: serde_json::from_str(row.get(2)).unwrap(),
    };
    rows.iter().map(told).collect()
}

fn assert_same(mode: &str, found: Vec<Told>, expected: &[Told]) {
    let mut counts: HashMap<String, i64> = HashMap::new();
    // Whatever the order of the keys.
    let text = |told: &Told| {
        let data: BTreeMap<_, _> = told.data.as_object().expect("an object").iter().collect();
        format!("{} {} {}", told.kind, told.user, serde_json::to_string(&data).expect("JSON"))
    };
    expected.iter().for_each(|told| *counts.entry(text(told)).or_default() += 1);
    found.iter().for_each(|told| *counts.entry(text(told)).or_default() -= 1);
    let mut wrong: Vec<String> = counts
        .into_iter()
        .filter(|(_, count)| *count != 0)
        .map(|(told, count)| format!("{count:+}: {}", told.chars().take(300).collect::<String>()))
        .collect();
    wrong.sort();
    let (shown, all) = (wrong.len().min(10), wrong.len());
    assert!(
        wrong.is_empty(),
        "{mode}: {} events, {} expected, {all} differ (+ is missing, - is too many):\n{}",
        found.len(),
        expected.len(),
        wrong[..shown].join("\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_identity_index_identity_and_triggers_tell_the_same_as_the_model() {
    assert_all_tell_the_same(TRANSACTIONS, "", INDEXES).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_move_between_partitions_tell_the_same_as_the_model() {
    let full = format!("{PARTITIONED}; {WHOLE_OLD_ROWS}");
    assert_all_tell_the_same(TRANSACTIONS / 2, &full, PARTITIONED).await;
}

/// `full` and `index` prepare the two primaries; triggers capture from the first.
async fn assert_all_tell_the_same(transactions: usize, full: &str, index: &str) {
    let workload = Workload::record(SEED, transactions);
    let server = Arc::new(PrivatePostgres::start(Options::default()).await.unwrap());
    let mut full = primary(&server, &format!("alter table payment alter user_id type text; {full}")).await;
    let mut index = primary(&server, &format!("alter table payment alter user_id type text; {index}")).await;
    let mut triggers = TestApp::prepare_on(Arc::clone(&server)).await;
    let source_url = full.source_url.clone();
    triggers.set("source.url", &source_url).set("source.capture", "trigger");
    for app in [&mut full, &mut index, &mut triggers] {
        app.setup().await;
        app.run_with(&["--roles", "capture"]).await;
    }
    tokio::join!(run(&full, &workload), run(&index, &workload));
    let expected = Model::replay(&workload, KeyChange::Update);
    println!("{} events of {transactions} transactions", expected.len());
    assert!(expected.len() > transactions / 2, "{}", expected.len());
    assert_same("triggers", told(&triggers).await, &Model::replay(&workload, KeyChange::DeleteAndInsert));
    assert_same("full identity", told(&full).await, &expected);
    assert_same("index identity", told(&index).await, &expected);
}
