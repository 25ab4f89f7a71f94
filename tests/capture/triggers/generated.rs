//! Generated columns that are mapped: each mode of capture accepts those that it can read, and
//! names the others.

use walhook::private_postgres::Options;

use super::{by_triggers, events, number};
use crate::support::TestApp;
use crate::support::versions;
use crate::wait_until_unready;

const GENERATED: &str = "
    alter table payment add cents bigint not null default 100,
        add shown text generated always as ('no. ' || invoice_number) virtual, add price numeric generated always as (cents / 100.0) stored;
    alter table distro_queue add code integer not null default 5,
        add state text generated always as (case code when 5 then 'complete' else 'error' end) virtual";

#[tokio::test]
async fn mapped_generated_columns_that_capture_cannot_read_are_refused_by_name() {
    let Some(programs) = versions::exactly(18) else {
        return;
    };

    let mut app = TestApp::prepare_alone(Options {
        programs: Some(&programs),
        ..Options::default()
    })
    .await;
    let platform = app.platform().await;

    platform.transaction(GENERATED).await;
    app.set("source.tables.payment.columns.invoice_number", "shown");
    app.set("source.tables.payment.columns.total_due_usd", "price");
    app.set("source.tables.distro_queue.columns.status", "state");

    let refused = async |app: &TestApp, problems: &[&str]| {
        for command in ["setup", "check"] {
            let output = app.walhook(&[command]).await;
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(
                !output.status.success() && problems.iter().all(|problem| text.contains(problem)),
                "{command}: {text}"
            );
        }
    };

    let by_wal = [
        "table public.payment: the WAL lacks its generated columns shown, price; make them ordinary columns, or compute the values with \
         source.tables.payment.computed.invoice_number, source.tables.payment.computed.total_due_usd",
        "table public.distro_queue: the WAL lacks its generated columns state; make them ordinary columns",
    ];
    refused(&app, &by_wal).await;
    by_triggers(&mut app);

    let by_triggers = [
        "table public.payment: triggers read as null its virtual generated columns shown; make them stored, or compute the values with \
         source.tables.payment.computed.invoice_number",
        "table public.distro_queue: triggers read as null its virtual generated columns state; make them stored",
    ];
    refused(&app, &by_triggers).await;
    assert!(!app.walhook(&["setup", "--print"]).await.status.success());

    assert_eq!(
        number(
            &platform.client,
            "select count(*) from pg_namespace where nspname = 'walhook_capture'"
        )
        .await,
        0
    );

    let stored = "alter table payment drop shown, add shown text generated always as ('no. ' || invoice_number) stored;
        alter table distro_queue drop state, add state text generated always as (case code when 5 then 'complete' else 'error' end) stored";
    platform.transaction(stored).await;
    app.setup().await;
    app.run().await;

    let user = platform.user(&[]).await;
    let pay = |id: i64| {
        format!(
            "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) values ({id}, {user}, 'I', 1, 1, 'ready')"
        )
    };

    platform.transaction(&pay(1)).await;
    app.wait_for_events(1).await;

    let data = events(&app).await.remove(0).1;
    assert_eq!(
        (
            data["invoice_number"].as_str(),
            data["total_due_usd"].to_string().trim_matches('"')
        ),
        (Some("no. I"), "1.0")
    );

    // A column that becomes virtual while triggers read it.
    platform
        .transaction(
            "alter table payment drop shown, add shown text generated always as ('no. ' || invoice_number) virtual",
        )
        .await;
    wait_until_unready(app.sidecar(), "gap: changes were lost (trigger_missing)").await;
}
