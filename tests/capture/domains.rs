//! Columns whose type is a domain are read as those of its base type, from the stream, by triggers
//! and by repairs.

use crate::support::TestApp;

/// Domains over types whose output and cast to text differ, one of them over another domain.
const DOMAINS: &str = "
    create domain code as char(20);
    create domain short_code as code check (length(value) < 15);
    create domain flag as boolean;
    create domain set_flag as flag not null;
    alter table distro_queue alter status type short_code;
    alter table payment alter status type set_flag using false;
    alter table release alter cat type code;
    alter table user_addon alter addon type code;
    create domain number as integer check (value > 0);
    alter table label alter id type number";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_domains_are_those_of_their_base_types() {
    for mode in ["wal", "trigger"] {
        let mut app = TestApp::prepare().await;
        app.set("source.capture", mode)
            .set("source.poll_interval", "20ms");
        app.set("source.tables.payment.values.status.t", "ready");

        let platform = app.platform().await;
        let user = platform.user(&["preflight_qc"]).await;
        let label = platform.label(user).await;
        let release = platform.release(label).await;
        let outlet = platform.outlet("O").await;
        let entry = platform.distribution(release, outlet, "complete").await;

        platform
            .transaction(&format!(
                "alter table release drop constraint release_label_id_fkey; {DOMAINS}"
            ))
            .await;
        app.setup().await;
        app.run_with(&["--roles", "capture"]).await;

        let changes = format!(
            "update distro_queue set status = 'batched' where id = {entry}; update distro_queue set status = 'complete' where id = {entry};
             insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) values (1, {user}, 'I', 1, 1, false), (2, {user}, 'J', 1, 1, true);
             update payment set status = not status; update release set cat = 'CAT1'; update release set delivery_status = 'distributed'"
        );
        platform.transaction(&changes).await;
        app.wait_for_count(
            "select count(*) from walhook.event where kind = 'payment.statement_ready'",
            2,
        )
        .await;
        app.wait_for_count(
            "select count(*) from walhook.event where kind = 'delivery.completed'",
            1,
        )
        .await;
        app.wait_for_count(
            "select count(*) from walhook.event where kind = 'distribution.outlet.status_changed'",
            2,
        )
        .await;

        let released = "select count(*) from walhook.event where kind = 'release.distributed' and data::jsonb ->> 'release_cat' = 'CAT1'";
        app.wait_for_count(released, 1).await;
        app.wait_for_count(
            "select count(*) from walhook.user_addon where addon = 'preflight_qc'",
            1,
        )
        .await;
        assert!(app.stop().await.success());

        let report = app.walhook_ok(&["repair", "--force", "--dry-run"]).await;
        let compared = report
            .lines()
            .filter(|line| line.starts_with("distro_queue ") || line.starts_with("payment "));
        let differing: Vec<&str> = compared
            .map(|line| line.split_once(char::is_whitespace).unwrap().1.trim())
            .collect();
        let unchanged = |line: &&str| line.split_whitespace().skip(1).all(|count| count == "0");

        assert!(
            differing.len() == 2 && differing.iter().all(unchanged),
            "{mode}: {report}"
        );
    }
}
