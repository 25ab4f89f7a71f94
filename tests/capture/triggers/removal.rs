//! Removing what capture from the WAL has left, while another session's transaction keeps the
//! tables from being locked.

use walhook::private_postgres::Options;

use super::locks::{INDEX, INDEXES, Probe, identity, long_report, remember_identity};
use super::{by_triggers, number, prepared};
use crate::support::{TestApp, eventually, run_sql};

/// The end of the reader's warning about the removal.
const WARNING: &str = "after the switch to triggers; retrying";

async fn wait_for_warning(app: &TestApp) -> String {
    let warning = async || {
        let log = std::fs::read_to_string(app.log_file()).unwrap_or_default();
        log.lines()
            .find(|line| line.contains(WARNING))
            .map(str::to_owned)
    };
    eventually("a warning about the removal", warning).await
}

#[tokio::test]
async fn after_a_switch_a_long_transaction_delays_the_removal_and_neither_the_platform_nor_capture()
{
    for replica_identity in ["full", "index"] {
        let mut app = TestApp::prepare_alone(Options::default()).await;
        app.set("source.replica_identity", replica_identity);
        app.setup().await;
        app.run().await;

        let platform = app.platform().await;
        let user = platform.user(&[]).await;

        platform.payment(user, "ready").await;
        app.wait_for_events(1).await;

        let before = identity(&platform.client).await;

        let report = long_report(&app).await;
        let probe = Probe::start(&app).await;

        by_triggers(&mut app);
        app.setup().await;
        app.restart().await;

        let warning = wait_for_warning(&app).await;

        for count in 2..=6 {
            platform.payment(user, "ready").await;
            app.wait_for_events(count).await;
        }

        probe.assert_never_blocked().await;
        assert!(warning.contains("(nightly report)"), "{warning}");
        assert_eq!(identity(&platform.client).await, before);

        // With a heartbeat of 300 ms there was time for more rounds.
        let log = std::fs::read_to_string(app.server.log_file()).unwrap();
        let attempts = log
            .lines()
            .filter(|line| line.contains("STATEMENT:") && line.contains("replica identity"));

        assert_eq!(attempts.count(), 3, "{log}");

        // Not kept by the report: the slot retains WAL.
        assert_eq!(
            number(
                &platform.client,
                "select count(*) from pg_replication_slots"
            )
            .await,
            0
        );

        run_sql(&report, "commit").await;
        app.restart().await;

        let removed = async || {
            let restored = identity(&platform.client).await == "d"
                && number(&platform.client, INDEXES).await == 0;
            restored.then_some(())
        };

        eventually("the replica identities to be restored", removed).await;
        platform.payment(user, "ready").await;
        app.wait_for_events(7).await;
        assert!(app.stop().await.success());
    }
}

#[tokio::test]
async fn an_index_that_cannot_be_dropped_now_stays_valid_and_does_not_stop_the_reader() {
    let mut app = prepared().await;
    app.setup().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    // As a removal leaves it that was killed before the last step.
    run_sql(&platform.client, INDEX).await;
    remember_identity(&app, "d", None).await;

    let report = long_report(&app).await;
    app.run().await;
    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;
    wait_for_warning(&app).await;
    platform.payment(user, "ready").await;
    app.wait_for_events(2).await;

    let valid = "select count(*) from pg_index where indexrelid = 'walhook_identity_payment'::regclass and indisvalid";
    assert_eq!(number(&platform.client, valid).await, 1);
    run_sql(&report, "commit").await;
    app.restart().await;

    let dropped = async || (number(&platform.client, INDEXES).await == 0).then_some(());
    eventually("the index to be dropped", dropped).await;
}

#[tokio::test]
async fn what_the_role_may_not_remove_is_reported_and_removed_by_setup_as_its_owner() {
    let mut app = TestApp::prepare_alone(Options::default()).await;
    app.setup().await;

    let owner = app.source().await;
    let grants = format!(
        "create role walhook login replication; grant create on database {}_platform to walhook;
         grant select, trigger on all tables in schema public to walhook",
        app.name
    );

    run_sql(&owner, &grants).await;
    let owners_url = app.source_url.clone();

    app.set("source.url", &owners_url.replace("postgres@", "walhook@"));
    app.run().await;
    by_triggers(&mut app);
    app.setup().await;
    app.restart().await;
    assert!(
        wait_for_warning(&app)
            .await
            .contains("must be owner of publication")
    );

    let publication = format!("publication {}: exists", app.name);
    let reported = |check: &std::process::Output| {
        let lines = String::from_utf8(check.stdout.clone()).unwrap();
        let is_reported = |subject: &str| {
            lines
                .lines()
                .any(|line| line.starts_with("warn") && line.contains(subject))
        };

        (
            is_reported(&publication),
            is_reported("replica identity of public.payment: still the one"),
        )
    };

    let check = app.walhook(&["check"]).await;
    assert_eq!(reported(&check), (true, true), "{check:?}");
    assert!(String::from_utf8_lossy(&check.stdout).contains("`walhook setup --print`"));

    let printed = app.walhook_ok(&["setup", "--print"]).await;
    for removal in [
        format!("drop publication if exists \"{}\";", app.name),
        "alter table \"public\".\"payment\" replica identity default;".to_owned(),
    ] {
        assert!(printed.contains(&removal), "{printed}");
    }

    let refused = app.walhook_ok(&["setup"]).await;
    assert!(
        refused.contains("note: not all that capture from the WAL has left could be removed"),
        "{refused}"
    );

    app.set("source.url", &owners_url);
    let removed = app.walhook_ok(&["setup"]).await;

    assert!(
        removed.contains(&format!("publication {}: dropped", app.name)),
        "{removed}"
    );
    assert!(
        removed.contains("replica identity of public.payment: default again"),
        "{removed}"
    );
    assert_eq!(identity(&owner).await, "d");

    let check = app.walhook(&["check"]).await;
    assert_eq!(reported(&check), (false, false), "{check:?}");
}
