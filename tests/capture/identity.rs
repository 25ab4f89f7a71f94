//! The replica identities full and index, with values that are stored out of line (TOAST).

use serde_json::Value;

use crate::support::{Platform, Received, Receiver, TestApp, next_id, one, run_sql};

const LONG: usize = 6_000;

/// Stores long values out of line and uncompressed, so that updates of other columns do not send
/// them.
async fn store_long_values_externally(app: &TestApp) {
    let statement =
        "alter table release alter column title set storage external, alter column cat set storage external,
             alter column review_issues set storage external;
         alter table distro_queue alter column message set storage external;
         alter table payment alter column invoice_number set storage external;
         alter table outlet alter column name set storage external";
    run_sql(&app.source().await, statement).await;
}

fn long(letter: &str) -> String {
    letter.repeat(LONG)
}

fn of<'a>(requests: &'a [Received], event: &str) -> Vec<&'a Received> {
    requests
        .iter()
        .filter(|request| request.event() == event)
        .collect()
}

/// Creates a release, its distribution and a statement with long values, and changes only their
/// states.
async fn transitions(platform: &Platform, user: i64) -> (i64, i64, i64) {
    let label = platform.label(user).await;
    let release = next_id();
    let payment = next_id();
    let issues = format!(r#"[{{"code": "{}"}}]"#, long("i"));
    let statement = "insert into release (id, label_id, cat, title, review_status, delivery_status, review_issues)
        values ($1, $2, $3, $4, 'to_review', 'pending', $5::text::jsonb)";

    platform
        .execute(
            statement,
            &[&release, &label, &long("c"), &long("t"), &issues],
        )
        .await;

    let outlet = platform.outlet(&long("o")).await;
    let entry = platform.distribution(release, outlet, "batched").await;

    platform
        .execute(
            "update distro_queue set message = $2 where id = $1",
            &[&entry, &long("m")],
        )
        .await;

    let statement =
        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
        values ($1, $2, $3, 1, 1, 'draft')";
    platform
        .execute(statement, &[&payment, &user, &long("v")])
        .await;
    platform.set_review_status(release, "rejected").await;
    platform.set_delivery_status(release, "distributed").await;
    platform.set_distribution_status(entry, "error").await;
    platform
        .execute(
            "update payment set status = 'ready' where id = $1",
            &[&payment],
        )
        .await;

    (release, entry, payment)
}

async fn assert_long_values_arrive(app: &mut TestApp) {
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    let events = [
        "release.review.status_changed",
        "release.distributed",
        "delivery.failed",
        "payment.statement_ready",
    ];

    app.api(&user.to_string())
        .await
        .create_webhook(&receiver.url("/"), &events)
        .await;
    let (release, entry, payment) = transitions(&platform, user).await;
    let received = receiver.wait_for(4).await;
    let data = |event: &str| -> Value {
        let found = of(&received, event);
        assert_eq!(found.len(), 1, "{event}: {}", received.len());
        found[0].data()
    };

    let review = data("release.review.status_changed");
    assert_eq!(
        (review["release_id"].as_i64(), review["new_status"].as_str()),
        (Some(release), Some("rejected"))
    );
    assert_eq!(
        review["review_issues"][0]["code"].as_str(),
        Some(long("i").as_str())
    );

    for data in [&review, &data("release.distributed")] {
        assert_eq!(data["release_title"].as_str(), Some(long("t").as_str()));
        assert_eq!(data["release_cat"].as_str(), Some(long("c").as_str()));
    }

    let failed = data("delivery.failed");
    assert_eq!(
        (
            failed["distro_queue_id"].as_i64(),
            failed["message"].as_str()
        ),
        (Some(entry), Some(long("m").as_str()))
    );

    assert_eq!(failed["outlet_name"].as_str(), Some(long("o").as_str()));
    let ready = data("payment.statement_ready");

    assert_eq!(ready["payment_request_id"].as_i64(), Some(payment));
    assert_eq!(ready["invoice_number"].as_str(), Some(long("v").as_str()));

    // No state changed, so no event is raised.
    platform
        .execute("update payment set amount = 2 where id = $1", &[&payment])
        .await;
    platform
        .execute(
            "update distro_queue set takedown = false where id = $1",
            &[&entry],
        )
        .await;

    platform.set_review_status(release, "to_review").await;
    let received = receiver.wait_for(5).await;
    assert_eq!(of(&received, "release.review.status_changed").len(), 2);
    assert_eq!(received.len(), 5);
}

#[tokio::test]
async fn long_values_arrive_complete_with_either_identity_and_after_a_switch_between_them() {
    let mut app = TestApp::prepare().await;
    store_long_values_externally(&app).await;
    app.set("source.heartbeat", "500ms");
    app.setup().await;
    app.run().await;
    assert_long_values_arrive(&mut app).await;

    // Switched while the sidecar runs, in both directions.
    app.set("source.replica_identity", "index");
    let output = app.walhook_ok(&["setup"]).await;

    for line in [
        "table public.release: replica identity index over id, review_status, delivery_status",
        "table public.payment: replica identity index over id, status",
    ] {
        assert!(output.contains(line), "{line} in {output}");
    }

    assert!(
        app.walhook_ok(&["setup"])
            .await
            .contains("everything is set up")
    );
    let checked = app.walhook_ok(&["check"]).await;

    assert!(
        checked.contains("ok    replica identity of public.payment: index: covers id, status"),
        "{checked}"
    );
    let reason = "replica identity of public.preflight_report: full: covers id, generated_at, since generated_at may be null";

    assert!(checked.contains(reason), "{checked}");
    assert_long_values_arrive(&mut app).await;
    app.restart().await;
    assert_long_values_arrive(&mut app).await;
    app.set("source.replica_identity", "full");
    assert!(
        app.walhook_ok(&["setup"])
            .await
            .contains("table public.payment: replica identity full")
    );
    assert_long_values_arrive(&mut app).await;
}

#[tokio::test]
async fn a_long_value_of_a_deleted_row_makes_the_event_unrouted_and_is_not_null() {
    let mut app = TestApp::prepare().await;
    store_long_values_externally(&app).await;
    app.set("source.replica_identity", "index");
    app.setup().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;

    platform
        .execute(
            "update release set title = $2 where id = $1",
            &[&release, &long("t")],
        )
        .await;

    platform.set_review_status(release, "to_review").await;
    platform
        .execute("delete from release where id = $1", &[&release])
        .await;
    app.run().await;

    let store = app.store().await;
    let unrouted = async || {
        let row = store
            .query_opt("select reason, source_id from walhook.unrouted_event", &[])
            .await
            .unwrap()?;
        Some((row.get::<_, String>(0), row.get::<_, String>(1)))
    };

    let (reason, row) = crate::support::eventually("the event without its title", unrouted).await;
    assert_eq!((reason.as_str(), row), ("row_gone", release.to_string()));

    let events: i64 = one(&store, "select count(*) from walhook.event").await;
    assert_eq!(events, 0);
}

#[tokio::test]
async fn an_interrupted_index_build_is_repeated_and_duplicates_are_reported() {
    let mut app = TestApp::prepare().await;
    app.set("source.replica_identity", "index");

    let owner = app.source().await;
    let doubles = "alter table payment drop constraint payment_pkey, alter column id set not null;
         insert into payment (id, invoice_number, amount, total_due_usd, status)
            values (1, 'a', 1, 1, 'draft'), (1, 'b', 1, 1, 'draft')";

    run_sql(&owner, doubles).await;
    let refused = app.walhook(&["setup"]).await;
    let output = String::from_utf8(refused.stderr).unwrap();

    assert!(
        output.contains("public.payment has several rows with the same id, status"),
        "{output}"
    );

    // A killed setup leaves an invalid index.
    let _ = owner
        .batch_execute(
            "create unique index concurrently walhook_identity_payment on payment (id, status)",
        )
        .await;
    run_sql(&owner, "delete from payment where invoice_number = 'b'").await;

    let valid =
        "select indisvalid from pg_index where indexrelid = 'walhook_identity_payment'::regclass";
    assert!(!one::<bool>(&owner, valid).await);
    app.setup().await;
    assert!(one::<bool>(&owner, valid).await);
}

#[tokio::test]
async fn setup_drops_no_index_of_another_table() {
    let mut app = TestApp::prepare().await;
    app.set("source.replica_identity", "full");

    let owner = app.source().await;
    run_sql(
        &owner,
        "create index walhook_identity_payment on label (name)",
    )
    .await;
    app.setup().await;

    let index = "select 'walhook_identity_payment'::regclass::text";
    assert_eq!(
        one::<String>(&owner, index).await,
        "walhook_identity_payment"
    );
}
