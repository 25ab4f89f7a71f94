//! The changes that capture reads from the slot.

use postgres_types::PgLsn;
use walhook::domain::change::{Change, Datum, Operation};
use walhook::domain::lsn::Lsn;
use walhook::domain::position::{Progress, Through};
use walhook::domain::table::{Table, distro_queue, release};
use walhook::private_postgres::{Options, StopMode};

use crate::stage::Stage;
use crate::support::{TestApp, eventually};

/// Returns the old and the new status of changes of distro_queue; `-` if the row or the value was
/// not sent.
fn statuses(changes: &[Change]) -> Vec<(&str, &str)> {
    let status = |tuple: &'_ walhook::domain::change::Tuple| -> &'static str {
        tuple
            .text(distro_queue::status)
            .map_or("-", |text| text.to_owned().leak())
    };

    let one = |change: &Change| match &change.operation {
        Operation::Insert { new } => ("", status(new)),
        Operation::Update { old, new } => (old.as_ref().map_or("-", status), status(new)),
        Operation::Replace { old, new } => (status(old), status(new)),
        Operation::Delete { old } => (status(old), ""),
        Operation::Truncate => ("truncate", "truncate"),
    };

    changes.iter().map(one).collect()
}

async fn prepared() -> TestApp {
    let app = TestApp::prepare().await;
    app.source()
        .await
        .batch_execute("alter table distro_queue drop constraint distro_queue_release_id_fkey")
        .await
        .unwrap();

    app
}

async fn write(app: &TestApp, statements: &str) {
    app.source().await.batch_execute(statements).await.unwrap();
}

const INSERT: &str = "insert into distro_queue (id, release_id, status) values";

#[tokio::test]
async fn committed_changes_arrive_in_order_with_old_and_new() {
    let app = prepared().await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    write(&app, &format!("{INSERT} (1, 1, 'scheduled')")).await;
    write(&app, &format!("begin; {INSERT} (2, 1, 'never'); rollback")).await;

    let mixed = format!(
        "begin; update distro_queue set status = 'batched' where id = 1;
         savepoint s; {INSERT} (3, 1, 'never'); rollback to s;
         create table other (id int primary key); insert into label (id, name) values (1, 'L');
         update distro_queue set message = 'm' where id = 1; delete from distro_queue where id = 1; commit"
    );

    write(&app, &mixed).await;
    write(&app, "truncate distro_queue").await;

    let changes = stage.changes(6).await;
    let (labels, queue): (Vec<Change>, Vec<Change>) = changes
        .into_iter()
        .partition(|change| change.table == Table::Label);

    assert_eq!(labels.len(), 1);

    assert_eq!(
        statuses(&queue),
        [
            ("", "scheduled"),
            ("scheduled", "batched"),
            ("batched", "batched"),
            ("batched", ""),
            ("truncate", "truncate")
        ]
    );

    let ordinals: Vec<u64> = queue
        .iter()
        .map(|change| change.position.ordinal())
        .collect();
    assert_eq!(ordinals, [1, 1, 3, 4, 1], "the label was the second");
    assert!(queue.is_sorted_by_key(|change| (change.position.commit(), change.position.ordinal())));
    stage.stop().await;
}

#[tokio::test]
async fn an_index_identity_sends_the_old_status_exactly_when_it_changed() {
    let app = prepared().await;
    let index = "create unique index watched on distro_queue (id, status);
         alter table distro_queue replica identity using index watched";

    write(&app, index).await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    write(&app, &format!("{INSERT} (1, 1, 'scheduled')")).await;
    write(
        &app,
        "update distro_queue set status = 'batched', message = 'm'",
    )
    .await;
    write(&app, "update distro_queue set message = 'n'").await;
    write(&app, "delete from distro_queue").await;

    let changes = stage.changes(4).await;
    assert_eq!(
        statuses(&changes),
        [
            ("", "scheduled"),
            ("scheduled", "batched"),
            ("-", "batched"),
            ("batched", "")
        ]
    );

    let Operation::Update { old: Some(old), .. } = &changes[1].operation else {
        panic!("{changes:?}")
    };

    assert_eq!(
        *old.get(distro_queue::message),
        Datum::Absent,
        "not part of the identity"
    );
    stage.stop().await;
}

#[tokio::test]
async fn an_unchanged_long_value_is_complete_in_the_new_row() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    let statement = "alter table release alter column title set storage external;
         alter table release drop constraint release_label_id_fkey;
         insert into release (id, label_id, title, review_status, delivery_status)
             values (1, 1, repeat('long ', 2000), 'draft', 'none');
         update release set review_status = 'to_review'";

    write(&app, statement).await;
    let changes = stage.changes(2).await;
    let Operation::Update { new, .. } = &changes[1].operation else {
        panic!("{changes:?}")
    };

    assert_eq!(new.text(release::title).map(str::len), Some(10_000));
    stage.stop().await;
}

#[tokio::test]
async fn a_muted_transaction_is_marked() {
    let app = prepared().await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    let mute = "select pg_logical_emit_message(true, 'walhook', 'mute')";

    write(
        &app,
        &format!("begin; {mute}; {INSERT} (1, 1, 'a'), (2, 1, 'b'); commit"),
    )
    .await;
    write(&app, &format!("{INSERT} (3, 1, 'c')")).await;

    let muted: Vec<bool> = stage
        .changes(3)
        .await
        .iter()
        .map(|change| change.muted)
        .collect();

    assert_eq!(muted, [true, true, false]);
    stage.stop().await;
}

fn in_wal(progress: &Progress) -> (Lsn, Through, Lsn) {
    let Progress::Wal {
        commit,
        through,
        resume,
    } = *progress
    else {
        panic!("{progress:?}")
    };
    (commit, through, resume)
}

#[tokio::test]
async fn a_large_transaction_arrives_in_parts_and_resumes_inside() {
    const ROWS: u64 = 5_000;
    let app = prepared().await;

    app.setup().await;
    let mut stage = Stage::start(&app).await;

    write(&app, &format!("{INSERT} (0, 1, 'before')")).await;

    // In two parts if the server is slow between the row and the commit.
    let (mut batch, mut whole);

    loop {
        batch = stage.receive().await;
        let through;

        (_, through, whole) = in_wal(&batch.checkpoint.progress);
        stage.store(batch).await;

        if through == Through::End {
            break;
        }
    }

    write(
        &app,
        &format!(
            "insert into distro_queue (id, release_id, status) select n, 1, 's' from generate_series(1, {ROWS}) n"
        ),
    )
    .await;

    let mut ordinals = Vec::new();
    let mut parts = 0;

    loop {
        batch = stage.receive().await;
        let (commit, through, resume) = in_wal(&batch.checkpoint.progress);

        assert!(batch.changes.len() <= 1_000);
        ordinals.extend(batch.changes.iter().map(|change| change.position.ordinal()));
        stage.store(batch).await;
        parts += 1;

        if through == Through::End {
            assert!(resume > whole);
            break;
        }

        // A heartbeat's end may be the LSN at which this commit begins.
        assert!(
            resume >= whole && resume <= commit,
            "a restart reads all of it"
        );
        assert_eq!(
            ordinals.last().copied().map(Through::Ordinal),
            Some(through)
        );

        if parts == 2 {
            // Another process continues where this one stopped.
            stage.stop().await;
            stage = Stage::start(&app).await;
            let known = ordinals.len();
            ordinals.extend(stage.changes_until_past(known as u64).await);
        }
    }

    assert!(parts >= 5, "{parts}");
    assert_eq!(ordinals, (1..=ROWS).collect::<Vec<_>>());
    stage.stop().await;
}

#[tokio::test]
async fn changes_are_neither_lost_nor_repeated_after_the_connection_ends() {
    let app = prepared().await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    write(&app, &format!("{INSERT} (1, 1, 'a')")).await;
    stage.changes(1).await;

    let client = app.source().await;

    for id in 2..5 {
        let ended = "select pg_terminate_backend(active_pid) from pg_replication_slots
             where slot_name = $1 and active_pid is not null";
        eventually("a walsender to end", async || {
            client.query_opt(ended, &[&app.name]).await.unwrap()
        })
        .await;
        write(&app, &format!("{INSERT} ({id}, 1, 'a')")).await;

        let changes = stage.changes(1).await;
        let Operation::Insert { new } = &changes[0].operation else {
            panic!("{changes:?}")
        };

        assert_eq!(new.text(distro_queue::id), Some(id.to_string().as_str()));
    }

    stage.stop().await;
}

#[tokio::test]
async fn a_second_process_stands_by_and_takes_over() {
    let app = prepared().await;
    app.setup().await;

    let mut first = Stage::start(&app).await;
    write(&app, &format!("{INSERT} (1, 1, 'a')")).await;
    first.changes(1).await;

    let mut second = Stage::start(&app).await;
    write(&app, &format!("{INSERT} (2, 1, 'b')")).await;
    assert_eq!(statuses(&first.changes(1).await), [("", "b")]);
    first.stop().await;
    write(&app, &format!("{INSERT} (3, 1, 'c')")).await;

    // It continues from the checkpoint that the first one stored.
    assert_eq!(statuses(&second.changes(1).await), [("", "c")]);
    second.stop().await;
}

#[tokio::test]
async fn dropping_the_slot_ends_capture_with_a_gap() {
    let app = prepared().await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    write(&app, &format!("{INSERT} (1, 1, 'a')")).await;
    stage.changes(1).await;
    app.drop_slot().await;

    let error = stage.ended().await.unwrap_err();
    assert!(error.to_string().contains("is missing"), "{error}");

    let gaps: i64 = app
        .store()
        .await
        .query_one("select count(*) from walhook.gap", &[])
        .await
        .unwrap()
        .get(0);

    assert_eq!(gaps, 1);
}

#[tokio::test]
async fn only_stored_changes_and_idle_wal_are_acknowledged() {
    let app = prepared().await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    let client = app.source().await;

    let confirmed = async || -> Lsn {
        let statement = "select confirmed_flush_lsn from pg_replication_slots where slot_name = $1";
        Lsn(client
            .query_one(statement, &[&app.name])
            .await
            .unwrap()
            .get::<_, PgLsn>(0)
            .into())
    };

    let current = async || -> Lsn {
        Lsn(client
            .query_one("select pg_current_wal_lsn()", &[])
            .await
            .unwrap()
            .get::<_, PgLsn>(0)
            .into())
    };

    write(&app, &format!("{INSERT} (1, 1, 'a')")).await;
    let batch = stage.receive().await;

    // Heartbeats continue to arrive, but nothing beyond the changes that are not stored may be
    // acknowledged.
    let heard = "select reply_time from pg_stat_replication join pg_replication_slots on pid = active_pid where slot_name = $1";
    let reply = async || {
        client
            .query_opt(heard, &[&app.name])
            .await
            .unwrap()?
            .get::<_, Option<jiff::Timestamp>>(0)
    };

    let started_at = eventually("the first feedback", reply).await;
    let passed =
        async || (reply().await?.duration_since(started_at).as_secs_f64() > 2.5).then_some(());

    eventually("feedback while nothing is stored", passed).await;
    assert!(confirmed().await < in_wal(&batch.checkpoint.progress).0);

    stage.store(batch).await;
    write(
        &app,
        "create table idle as select n from generate_series(1, 1000) n",
    )
    .await;

    let idle = current().await;
    let moved = async || (confirmed().await >= idle).then_some(());

    stage
        .serve_until(eventually("idle WAL to be acknowledged", moved))
        .await;

    let written: i64 = app
        .store()
        .await
        .query_one(
            "select count(*) from walhook.checkpoint where resume_lsn >= $1",
            &[&PgLsn::from(idle.0)],
        )
        .await
        .unwrap()
        .get(0);

    assert_eq!(written, 0, "idle WAL does not move the checkpoint");
    stage.stop().await;
}

#[tokio::test]
async fn the_connection_survives_while_the_channel_is_full() {
    let app = TestApp::prepare_alone(Options {
        settings: &crate::chaos::BUSY,
        ..Options::default()
    })
    .await;
    write(
        &app,
        "alter table distro_queue drop constraint distro_queue_release_id_fkey",
    )
    .await;
    app.setup().await;

    let mut stage = Stage::start(&app).await;
    let client = app.source().await;

    write(&app, "insert into distro_queue (id, release_id, status) select n, 1, 's' from generate_series(1, 20000) n")
        .await;
    let first = stage.receive().await;
    let walsender = "select pid, reply_time from pg_stat_replication where reply_time is not null";
    let feedback = eventually("the first feedback", async || {
        client.query_opt(walsender, &[]).await.unwrap()
    })
    .await;
    let (pid, since): (i32, jiff::Timestamp) = (feedback.get(0), feedback.get(1));

    eventually("feedback for longer than wal_sender_timeout", async || {
        let row = client.query_one(walsender, &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), pid, "the connection must not end");

        (row.get::<_, jiff::Timestamp>(1)
            .duration_since(since)
            .as_secs_f64()
            > 15.0)
            .then_some(())
    })
    .await;

    let mut count = stage.store(first).await.len();
    while count < 20_000 {
        let batch = stage.receive().await;
        count += stage.store(batch).await.len();
    }

    assert_eq!(
        client
            .query_one(walsender, &[])
            .await
            .unwrap()
            .get::<_, i32>(0),
        pid
    );

    stage.stop().await;
}

#[tokio::test]
async fn the_primary_can_shut_down_without_waiting_and_capture_continues_afterwards() {
    let app = TestApp::prepare_alone(Options::default()).await;
    write(
        &app,
        "alter table distro_queue drop constraint distro_queue_release_id_fkey",
    )
    .await;
    app.setup().await;

    let socket = app
        .server
        .directory()
        .display()
        .to_string()
        .replace('/', "%2F");

    let url = app.source_url.replace("127.0.0.1", &socket);
    let mut stage = Stage::start_with_url(&app, &url).await;

    write(&app, &format!("{INSERT} (1, 1, 'a')")).await;
    stage.changes(1).await;
    write(
        &app,
        "create table idle as select n from generate_series(1, 10000) n",
    )
    .await;

    // Fails when the walsender is still waiting for an acknowledgement.
    stage
        .serve_until(app.server.stop(StopMode::Fast))
        .await
        .unwrap();
    app.server.start_again().await.unwrap();
    stage.reconnect_store(&app);
    write(&app, &format!("{INSERT} (2, 1, 'b')")).await;
    assert_eq!(statuses(&stage.changes(1).await), [("", "b")]);
    stage.stop().await;
}
