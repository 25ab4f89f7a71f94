//! The platform's own statements: none fails or waits because of the triggers, and each change is
//! captured.

use super::{by_triggers, events, number, prepared};
use crate::support::versions::selected_or_latest;
use crate::support::{Platform, TestApp, run_sql};
use walhook::private_postgres::Options;

const FAILED: &str = "select count(*) from walhook_capture.failures where is_called";
const GAPS: &str = "select count(*) from walhook.gap";

/// Fills `distro_queue` with rows of this status.
async fn fill(platform: &Platform, rows: i64, status: &str) {
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let fill = "insert into distro_queue (id, release_id, status) select n, $1, $3 from generate_series(1, $2::bigint) n";
    platform.execute(fill, &[&release, &rows, &status]).await;
}

#[tokio::test]
async fn a_statement_on_many_rows_needs_no_temporary_file() {
    const ROWS: i64 = 20_000;
    let mut app = prepared().await;
    let platform = app.platform().await;

    fill(&platform, ROWS, "scheduled").await;
    app.setup().await;
    app.run_with(&["--roles", "capture"]).await;
    run_sql(
        &platform.client,
        "set temp_file_limit = 0; set work_mem = '64kB'",
    )
    .await;
    platform
        .transaction("update distro_queue set updated_at = now()")
        .await;

    assert_eq!(
        number(
            &platform.client,
            "select count(*) from walhook_capture.outbox"
        )
        .await,
        0
    );

    platform
        .transaction("update distro_queue set status = 'batched'")
        .await;
    platform.transaction("delete from distro_queue").await;
    app.wait_for_events(ROWS as usize).await;
    assert_eq!(number(&platform.client, FAILED).await, 0);
}

/// The session's plans have the earlier types.
#[tokio::test]
async fn a_session_that_used_a_table_before_a_type_was_altered_is_captured() {
    let (version, programs) = selected_or_latest().expect("an installed PostgreSQL");
    let mut app = TestApp::prepare_alone(Options {
        programs: Some(&programs),
        ..Options::default()
    })
    .await;
    by_triggers(&mut app);

    let platform = app.platform().await;
    fill(&platform, 2, "scheduled").await;
    app.setup().await;
    app.run_with(&["--roles", "capture"]).await;
    platform
        .transaction("update distro_queue set status = 'batched' where id = 1")
        .await;

    let altered = "create domain state as varchar(40); alter table distro_queue alter id type integer, alter status type state";
    run_sql(&app.source().await, altered).await;

    let statements = "update distro_queue set updated_at = now(); update distro_queue set status = 'complete' where id = 1;
        insert into distro_queue (id, release_id, status) select 3, release_id, 'error' from distro_queue where id = 2;
        delete from distro_queue where id = 2; truncate distro_queue";
    platform.transaction(statements).await;
    app.wait_for_events(5).await;

    let found = events(&app).await;
    let found: Vec<String> = found
        .iter()
        .filter(|(kind, _)| kind == "distribution.outlet.status_changed")
        .map(|(_, data)| {
            format!(
                "{} {} {}",
                data["distro_queue_id"], data["previous_status"], data["status"]
            )
        })
        .collect();

    let expected = [
        r#"1 "scheduled" "batched""#,
        r#"1 "batched" "complete""#,
        r#"3 null "error""#,
    ];
    assert_eq!(found, expected, "PostgreSQL {version}");
    assert_eq!(
        number(&platform.client, FAILED).await,
        0,
        "PostgreSQL {version}"
    );
}

#[tokio::test]
async fn a_transaction_waits_once_for_an_outbox_that_is_locked() {
    let app = prepared().await;
    let platform = app.platform().await;

    fill(&platform, 100, "scheduled").await;
    app.setup().await;

    let holder = app.source().await;
    run_sql(&holder, "begin; lock table walhook_capture.outbox").await;

    // A second per row would take longer.
    run_sql(&platform.client, "set statement_timeout = '50s'").await;
    platform
        .transaction("update distro_queue set status = 'batched'")
        .await;
    run_sql(&holder, "rollback").await;

    assert_eq!(
        number(
            &platform.client,
            "select last_value from walhook_capture.failures"
        )
        .await,
        100
    );

    platform
        .transaction("update distro_queue set status = 'complete'")
        .await;

    assert_eq!(
        number(
            &platform.client,
            "select count(*) from walhook_capture.outbox"
        )
        .await,
        100
    );
}

/// As routine retention does, by a role that has no rights to what setup created.
#[tokio::test]
async fn partitions_that_are_created_detached_and_dropped_are_no_gap() {
    let (version, programs) = selected_or_latest().expect("an installed PostgreSQL");
    let mut app = TestApp::prepare_alone(Options {
        programs: Some(&programs),
        ..Options::default()
    })
    .await;
    by_triggers(&mut app);

    let platform = app.platform().await;
    let partitioned = "alter default privileges revoke execute on functions from public;
        create role keeper; alter table payment rename to old_payment;
        create table payment (like old_payment including defaults, primary key (id)) partition by range (id);
        create table payment_1 partition of payment for values from (0) to (100);
        create table payment_2 partition of payment for values from (100) to (200);
        alter table payment owner to keeper; alter table payment_1 owner to keeper; alter table payment_2 owner to keeper;
        grant all on schema public to keeper; grant all on all tables in schema public to keeper";

    platform.transaction(partitioned).await;
    app.setup().await;
    app.run().await;

    let user = platform.user(&[]).await;
    let insert = |id: i64| {
        format!(
            "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) values ({id}, {user}, 'A', 1, 1, 'ready')"
        )
    };

    platform
        .transaction(&format!("{}; {}", insert(1), insert(101)))
        .await;
    app.wait_for_events(2).await;

    let retention = "set local role keeper; drop table payment_1; alter table payment detach partition payment_2;
        create table payment_3 partition of payment for values from (200) to (300);
        create table payment_4 (like payment including defaults including constraints);
        alter table payment attach partition payment_4 for values from (300) to (400)";
    platform.transaction(retention).await;
    platform
        .transaction(&format!("{}; {}", insert(201), insert(301)))
        .await;
    app.wait_for_events(4).await;

    let check = app.walhook_ok(&["check"]).await;
    assert!(
        check.contains("ok    triggers of public.payment: exist, on 3 tables"),
        "PostgreSQL {version}: {check}"
    );

    // Partitions come and go at any moment, also while their triggers are compared.
    let churn = async {
        loop {
            platform
                .transaction(
                    "create table payment_5 partition of payment for values from (400) to (500)",
                )
                .await;
            platform.transaction("drop table payment_5").await;
        }
    };
    let checks = async {
        for _ in 0..10 {
            let check = app.walhook_ok(&["check"]).await;
            assert!(check.contains("ok    triggers of public.payment: exist"));
        }
    };
    tokio::select! {
        () = churn => {}
        () = checks => {}
    }

    assert_eq!(
        app.walhook_ok(&["setup"]).await.trim(),
        "everything is set up",
        "PostgreSQL {version}"
    );
    assert_eq!(
        number(&app.store().await, GAPS).await,
        0,
        "PostgreSQL {version}"
    );
    app.sidecar().wait_until_ready().await;
}
