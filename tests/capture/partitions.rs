//! Rows that move between partitions, and rows that a transaction deletes and inserts again, count
//! as the same rows.

use serde_json::Value;
use walhook::domain::change::{Change, Operation};

use crate::stage::Stage;
use crate::support::{Platform, TestApp, run_sql};

/// Primary keys must contain the partition key.
const PARTITIONED: &str = "
    alter table distro_queue drop constraint distro_queue_pkey, add archived boolean not null default false;
    alter table distro_queue rename to before;
    create table distro_queue (like before including defaults, primary key (id, archived)) partition by list (archived);
    create table distro_queue_live partition of distro_queue for values in (false);
    create table distro_queue_archive partition of distro_queue for values in (true) partition by hash (id);
    create table distro_queue_leaf partition of distro_queue_archive for values with (modulus 1, remainder 0);
    drop table before;
    drop table release cascade;
    create table release (id bigint, label_id bigint not null, cat text, title text, review_status text not null,
        delivery_status text not null, review_issues jsonb, pre_review_hold boolean not null default false,
        primary key (id, review_status)) partition by list (review_status);
    create table release_draft partition of release for values in ('draft');
    create table release_other partition of release default";

const COLUMNS: &str = "id, release_id, outlet_id, status, takedown, message";

async fn partitioned(capture: &str) -> (TestApp, Platform, i64) {
    let mut app = TestApp::prepare().await;
    app.set("source.capture", capture)
        .set("source.poll_interval", "20ms");

    let platform = app.platform().await;
    run_sql(&platform.client, PARTITIONED).await;

    let user = platform.user(&[]).await;
    app.setup().await;
    app.run_with(&["--roles", "capture"]).await;

    (app, platform, user)
}

/// Waits until everything committed so far is stored, by a last payment. Returns the kinds and data
/// of all other events.
async fn events(app: &TestApp, platform: &Platform, user: i64) -> Vec<(String, Value)> {
    platform.payment(user, "ready").await;
    app.wait_for_count(
        "select count(*) from walhook.event where kind = 'payment.statement_ready'",
        1,
    )
    .await;

    let query = "select kind, data::text from walhook.event where kind <> 'payment.statement_ready' order by id, kind";
    let rows = app.store().await.query(query, &[]).await.unwrap();
    let mut events: Vec<(String, Value)> = rows
        .iter()
        .map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap()))
        .collect();

    events.sort_by_key(|(kind, data)| {
        (
            data["distro_queue_id"].as_i64(),
            kind.clone(),
            data.to_string(),
        )
    });

    events
}

fn moves(events: &[(String, Value)]) -> Vec<String> {
    let one = |(kind, data): &(String, Value)| {
        format!(
            "{} {kind} {} {}",
            data["distro_queue_id"], data["previous_status"], data["status"]
        )
        .replace('"', "")
    };
    events.iter().map(one).collect()
}

/// The deletions are in earlier batches than the insertions.
async fn assert_many_rewritten_rows_raise_only_transitions(capture: &str) {
    const ROWS: usize = 3_000;
    let (app, platform, user) = partitioned(capture).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let mute =
        "select pg_logical_emit_message(true, 'walhook', 'mute'); set local walhook.mute = 'on'";
    let fill = format!(
        "{mute}; insert into distro_queue (id, release_id, status)
         select n, {release}, 'batched' from generate_series(1, {ROWS}) n"
    );

    platform.transaction(&fill).await;
    let again = format!(
        "create temporary table gone on commit drop as select * from distro_queue; delete from distro_queue;
         insert into distro_queue ({COLUMNS}, archived)
         select id, release_id, outlet_id, case when id % 1000 = 0 then 'complete' else status end, takedown, message, true
         from gone order by id"
    );

    platform.transaction(&again).await;
    let events = moves(&events(&app, &platform, user).await);
    let expected: Vec<String> = (1..=ROWS / 1_000)
        .flat_map(|n| {
            let id = n * 1_000;
            [
                format!("{id} delivery.completed null complete"),
                format!("{id} distribution.outlet.status_changed batched complete"),
            ]
        })
        .collect();

    assert!(
        events == expected,
        "{capture}: {} events, {:?}",
        events.len(),
        &events[..events.len().min(20)]
    );

    // The ledger has the current rows.
    let states = "select count(*) from walhook.last_seen where relation = 2";
    app.wait_for_count(states, ROWS).await;
}

#[tokio::test]
async fn many_rewritten_rows_raise_only_transitions() {
    assert_many_rewritten_rows_raise_only_transitions("wal").await;
}

#[tokio::test]
async fn many_rewritten_rows_raise_only_transitions_by_triggers() {
    assert_many_rewritten_rows_raise_only_transitions("trigger").await;
}

#[tokio::test]
async fn a_process_that_resumes_between_deletions_and_insertions_pairs_them() {
    const ROWS: usize = 8_000;
    let app = TestApp::prepare().await;
    let source = app.source().await;
    let fill = format!(
        "alter table distro_queue drop constraint distro_queue_release_id_fkey;
         insert into distro_queue (id, release_id, status) select n, 1, 'batched' from generate_series(1, {ROWS}) n"
    );

    run_sql(&source, &fill).await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    let again = "begin; create temporary table gone on commit drop as select * from distro_queue;
        delete from distro_queue; insert into distro_queue select * from gone; commit";

    run_sql(&source, again).await;
    let mut changes: Vec<Change> = Vec::new();
    while changes.len() < ROWS / 2 {
        let batch = stage.receive().await;
        changes.extend(stage.store(batch).await);
    }

    assert!(
        changes.len() < ROWS
            && changes
                .iter()
                .all(|change| matches!(change.operation, Operation::Delete { .. }))
    );

    stage.stop().await;
    let mut stage = Stage::start(&app).await;

    changes.extend(stage.changes(2 * ROWS - changes.len()).await);
    stage.stop().await;
    assert!(
        changes.is_sorted_by_key(|change| (change.position.commit(), change.position.ordinal()))
    );

    let inserted = &changes[ROWS..];
    assert!(
        inserted
            .iter()
            .all(|change| matches!(change.operation, Operation::Replace { .. })),
        "{:?}",
        inserted[0]
    );
}
