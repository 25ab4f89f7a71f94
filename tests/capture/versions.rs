//! Capture, a kill, both replica identities, check and teardown on every installed PostgreSQL
//! version.

use std::path::Path;

use walhook::private_postgres::Options;

use crate::chaos::Scenario;
use crate::support::TestApp;
use crate::support::versions;
use crate::wait_until_unready;

async fn assert_capture_works(version: u32, programs: &Path) {
    let mut settings = vec![
        ("wal_sender_timeout", "4s"),
        ("max_slot_wal_keep_size", "1GB"),
    ];

    if version >= 18 {
        settings.push(("idle_replication_slot_timeout", "1h"));
    }

    let options = Options {
        programs: Some(programs),
        settings: &settings,
        ..Options::default()
    };

    let mut scenario = Scenario::start(TestApp::prepare_alone(options).await).await;
    let slot =
        "select to_jsonb(slot) ->> 'failover' from pg_replication_slots slot where slot_name = $1";

    let failover: Option<String> = scenario
        .platform
        .client
        .query_one(slot, &[&scenario.app.name])
        .await
        .unwrap()
        .get(0);

    assert_eq!(
        failover.as_deref(),
        (version >= 17).then_some("true"),
        "PostgreSQL {version}"
    );
    scenario.pay(10).await;
    scenario.app.kill().await;
    scenario.pay(10).await;

    // The stream must show that a table has left the publication, not the check after a heartbeat.
    scenario
        .app
        .set("source.replica_identity", "index")
        .set("source.heartbeat", "1h")
        .setup()
        .await;

    scenario.app.run().await;
    scenario.pay(10).await;
    scenario.assert_delivered().await;

    let lines = scenario.app.walhook_ok(&["check"]).await;
    assert!(lines.contains(&format!("PostgreSQL {version}")), "{lines}");
    assert!(
        lines.contains("warn  wal_sender_timeout: 4000 ms"),
        "{lines}"
    );
    assert!(
        lines.contains("ok    max_slot_wal_keep_size: 1GB"),
        "{lines}"
    );
    assert_eq!(
        lines.contains("warn  idle_replication_slot_timeout: 3600 s"),
        version >= 18,
        "{lines}"
    );

    let unpublish = format!("alter publication {} drop table label", scenario.app.name);
    scenario.platform.execute(&unpublish, &[]).await;
    scenario.pay(1).await;
    wait_until_unready(
        scenario.app.sidecar(),
        ": lacks public.label; run `walhook setup`",
    )
    .await;
    scenario.app.setup().await;
    scenario.assert_delivered().await;
    assert!(scenario.app.stop().await.success());
    scenario.app.walhook_ok(&["teardown", "--yes"]).await;

    assert!(
        scenario
            .app
            .walhook_ok(&["teardown", "--yes"])
            .await
            .contains("nothing is left to remove")
    );
}

async fn test_version(version: u32) {
    if let Some(programs) = versions::exactly(version) {
        assert_capture_works(version, &programs).await;
    }
}

macro_rules! versions {
    ($($(#[$attribute:meta])? $test:ident: $version:literal,)+) => {
        $(
            $(#[$attribute])?
            #[tokio::test]
            async fn $test() {
                test_version($version).await;
            }
        )+
    };
}

versions! {
    #[ignore = "for `make soak`"] capture_works_on_version_14: 14,
    capture_works_on_version_15: 15,
    #[ignore = "for `make soak`"] capture_works_on_version_16: 16,
    #[ignore = "for `make soak`"] capture_works_on_version_17: 17,
    capture_works_on_version_18: 18,
}
