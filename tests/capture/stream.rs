//! The changes that capture reads from the slot.

use postgres_types::PgLsn;
use walhook::domain::change::{Change, Operation};
use walhook::domain::lsn::Lsn;
use walhook::domain::position::{Progress, Through};
use walhook::domain::table::distro_queue;

use crate::stage::Stage;
use crate::support::{TestApp, eventually, one, run_sql};

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
    run_sql(
        &app.source().await,
        "alter table distro_queue drop constraint distro_queue_release_id_fkey",
    )
    .await;

    app
}

async fn write(app: &TestApp, statements: &str) {
    run_sql(&app.source().await, statements).await;
}

const INSERT: &str = "insert into distro_queue (id, release_id, status) values";

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
    const ROWS: u64 = 20_000;
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

        assert!(batch.changes.len() <= 4_000);
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
        Lsn(one::<PgLsn>(&client, "select pg_current_wal_lsn()")
            .await
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
