//! Rows that move between partitions, and rows that a transaction deletes and inserts again, count
//! as the same rows.

use serde_json::Value;
use walhook::domain::change::{Change, Operation};

use crate::stage::Stage;
use crate::support::{Platform, TestApp, one, run_sql};
use crate::wait_until_unready;

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
    let payments: i64 = one(&platform.client, "select count(*) from payment").await;
    app.wait_for_count(
        "select count(*) from walhook.event where kind = 'payment.statement_ready'",
        payments as usize,
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
        let id = data.get("distro_queue_id").unwrap_or(&data["release_id"]);
        let status = data.get("new_status").unwrap_or(&data["status"]);
        format!("{id} {kind} {} {status}", data["previous_status"]).replace('"', "")
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

/// Partitions that exist before setup.
const REGIONS: &str = "
    alter table distro_queue drop constraint distro_queue_pkey, add region text not null default 'old';
    alter table distro_queue rename to before;
    create table distro_queue (like before including defaults, primary key (id, region)) partition by list (region);
    create table distro_queue_old partition of distro_queue for values in ('old');
    drop table before;
    drop table release cascade;
    create table release (id bigint, label_id bigint not null, cat text, title text, review_status text not null,
        delivery_status text not null, review_issues jsonb, pre_review_hold boolean not null default false,
        primary key (id, review_status)) partition by list (review_status);
    create table release_other partition of release default";

/// A replica identity that setup accepts.
const IDENTITY_INDEX: &str = "
    create unique index known on distro_queue (id, region, status);
    alter table distro_queue replica identity using index known";

const NEW_PARTITIONS: &str = "
    create table distro_queue_new partition of distro_queue for values in ('new', 'newer');
    create table release_draft partition of release for values in ('draft')";

/// They commit with their partitions, so that Walhook cannot set a replica identity before.
const NEW_ROWS: &str = "
    insert into distro_queue (id, release_id, status, region)
        select n, 1000000, 'batched', 'new' from generate_series(1, 20) n;
    insert into release (id, label_id, review_status, delivery_status)
        select n, {label}, 'draft', 'pending' from generate_series(1, 20) n";

/// The release of all rows of `distro_queue`.
const RELEASE: i64 = 1_000_000;
/// The rows that one round changes.
const ROUND: i64 = 10;

/// Transactions of the platform, each for a row of its own. `{id}` is its id.
const TRANSACTIONS: [&str; ROUND as usize] = [
    "update distro_queue set message = 'm' where id = {id};
     update release set delivery_status = 'distributed' where id = {id};
     update release set review_status = 'to_review' where id = {id}",
    "update distro_queue set region = 'old' where id = {id}",
    "update distro_queue set region = 'newer' where id = {id}",
    "delete from distro_queue where id = {id};
     insert into distro_queue (id, release_id, status, region) values ({id}, 1000000, 'batched', 'new')",
    "delete from distro_queue where id = {id}",
    // Their status changes too.
    "update distro_queue set status = 'complete' where id = {id}",
    "update distro_queue set status = 'complete', region = 'old' where id = {id}",
    "update distro_queue set status = 'complete', region = 'newer' where id = {id}",
    "delete from distro_queue where id = {id};
     insert into distro_queue (id, release_id, status, region) values ({id}, 1000000, 'complete', 'new')",
    "update distro_queue set message = 'm' where id = {id};
     update distro_queue set status = 'complete', region = 'old' where id = {id}",
];

/// Executes all transactions on the rows after `after`. Returns what they raise.
async fn change_rows(platform: &Platform, after: i64) -> Vec<String> {
    for (id, transaction) in (after + 1..).zip(TRANSACTIONS) {
        platform
            .transaction(&transaction.replace("{id}", &id.to_string()))
            .await;
    }

    let release = after + 1;
    let of_release = [
        format!("{release} release.distributed null null"),
        format!("{release} release.review.status_changed draft to_review"),
    ];
    let of_rows = (after + 6..=after + ROUND).flat_map(|id| {
        [
            format!("{id} delivery.completed null complete"),
            format!("{id} distribution.outlet.status_changed batched complete"),
        ]
    });
    of_release.into_iter().chain(of_rows).collect()
}

/// Starts the process. `identity` is the statement for the replica identity of `distro_queue`.
/// Returns also a user and their label.
async fn with_regions(identity: &str) -> (TestApp, Platform, i64, i64) {
    let mut app = TestApp::prepare().await;
    let platform = app.platform().await;
    run_sql(&platform.client, &format!("{REGIONS}; {identity}")).await;

    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let rows = format!(
        "insert into release (id, label_id, review_status, delivery_status)
         values ({RELEASE}, {label}, 'approved', 'pending')"
    );

    run_sql(&platform.client, &rows).await;
    app.setup().await;
    app.run_with(&["--roles", "capture"]).await;

    (app, platform, user, label)
}

/// Creates the partitions and their rows. `identity` is the statement for the partitions' replica
/// identity. Returns what the rows raise.
async fn create_partitions(platform: &Platform, label: i64, identity: &str) -> Vec<String> {
    let rows = NEW_ROWS.replace("{label}", &label.to_string());
    platform
        .transaction(&format!("{NEW_PARTITIONS}; {identity}; {rows}"))
        .await;

    (1..=2 * ROUND)
        .map(|id| format!("{id} distribution.outlet.status_changed null batched"))
        .collect()
}

/// Repairs, and starts the process again.
async fn repair(app: &mut TestApp) {
    app.setup().await;
    app.walhook_ok(&["repair"]).await;
    app.run_with(&["--roles", "capture"]).await;
}

/// Asserts that exactly these events were raised.
async fn assert_raised(app: &TestApp, platform: &Platform, user: i64, expected: &[String]) {
    let mut raised = moves(&events(app, platform, user).await);
    let mut expected = expected.to_vec();
    raised.sort();
    expected.sort();
    assert_eq!(raised, expected);
}

/// Rows of a partition whose replica identity is its key raise nothing that did not happen, and a
/// repair finds what did.
async fn assert_a_new_partition_is_a_gap_without_false_events(identity: &str) {
    let (mut app, platform, user, label) = with_regions(identity).await;
    let mut expected = create_partitions(&platform, label, "").await;
    let missed = change_rows(&platform, 0).await;
    wait_until_unready(app.sidecar(), "gap: changes were lost (identity_lost)").await;

    // Old rows of the first partition are whole.
    let id = platform.distribution(RELEASE, 1, "batched").await;
    platform.set_distribution_status(id, "rejected").await;

    expected.extend([
        format!("{id} delivery.failed null rejected"),
        format!("{id} distribution.outlet.status_changed null batched"),
        format!("{id} distribution.outlet.status_changed batched rejected"),
    ]);
    assert_raised(&app, &platform, user, &expected).await;

    assert!(app.stop().await.success());
    repair(&mut app).await;
    expected.extend(missed);
    assert_raised(&app, &platform, user, &expected).await;

    expected.extend(change_rows(&platform, ROUND).await);
    assert_raised(&app, &platform, user, &expected).await;
}

#[tokio::test]
async fn a_new_partition_is_a_gap_without_false_events() {
    assert_a_new_partition_is_a_gap_without_false_events("").await;
}

#[tokio::test]
async fn a_new_partition_of_a_table_with_an_identity_index_is_a_gap_without_false_events() {
    assert_a_new_partition_is_a_gap_without_false_events(IDENTITY_INDEX).await;
}

#[tokio::test]
async fn a_new_partition_with_replica_identity_full_is_no_gap() {
    let full = "alter table distro_queue_new replica identity full;
                alter table release_draft replica identity full";
    let (app, platform, user, label) = with_regions("").await;
    let mut expected = create_partitions(&platform, label, full).await;
    expected.extend(change_rows(&platform, 0).await);
    assert_raised(&app, &platform, user, &expected).await;

    let gaps: i64 = one(&app.store().await, "select count(*) from walhook.gap").await;
    assert_eq!(gaps, 0);
}

/// When their changes are read, the partitions no longer exist. Some of their rows do.
#[tokio::test]
async fn rows_that_have_left_a_dropped_partition_are_a_gap_without_false_events() {
    let (mut app, platform, user, label) = with_regions("").await;
    assert!(app.stop().await.success());

    let mut expected = create_partitions(&platform, label, "").await;
    let missed = change_rows(&platform, 0).await;
    let drop = "drop table distro_queue_new; alter table release detach partition release_draft";
    platform.transaction(drop).await;

    // It may find the gap before it is ready.
    let sidecar = app.spawn(&["--roles", "capture"]);
    wait_until_unready(&sidecar, "gap: changes were lost (identity_lost)").await;
    assert_raised(&app, &platform, user, &expected).await;

    assert!(sidecar.stop().await.success());
    repair(&mut app).await;
    let remaining = ["1 ", "7 ", "10 "];
    let is_of_remaining = |event: &String| remaining.iter().any(|id| event.starts_with(id));
    expected.extend(missed.into_iter().filter(is_of_remaining));
    assert_raised(&app, &platform, user, &expected).await;
}
