//! Teardown restores the primary's catalog exactly as setup found it.

use walhook::private_postgres::Options;

use crate::support::{TestApp, run_sql};

/// The rows of all catalog tables that can contain a user's objects.
const CATALOG: &str = "
    select 'class', to_jsonb(c) - '{relpages,reltuples,relallvisible,relallfrozen,relfrozenxid,relminmxid,relhasindex}'::text[]
        from pg_class c where oid >= 16384
    union all select 'attribute', to_jsonb(a) from pg_attribute a where attrelid >= 16384
    union all select 'index', to_jsonb(i) from pg_index i where indexrelid >= 16384
    union all select 'constraint', to_jsonb(c) from pg_constraint c where oid >= 16384
    union all select 'trigger', to_jsonb(t) from pg_trigger t
    union all select 'event trigger', to_jsonb(t) from pg_event_trigger t
    union all select 'function', to_jsonb(p) from pg_proc p where oid >= 16384
    union all select 'type', to_jsonb(t) from pg_type t where oid >= 16384
    union all select 'namespace', to_jsonb(n) from pg_namespace n where nspname !~ '^pg_(toast_)?temp_'
    union all select 'publication', to_jsonb(p) from pg_publication p
    union all select 'publication member', to_jsonb(p) from pg_publication_rel p
    union all select 'slot', to_jsonb(s.slot_name) from pg_replication_slots s
    union all select 'role', to_jsonb(r) from pg_roles r
    union all select 'setting', to_jsonb(s) from pg_db_role_setting s
    union all select 'description', to_jsonb(d) from pg_description d where objoid >= 16384
    union all select 'statistics', to_jsonb(s) from pg_statistic_ext s";

async fn dump(app: &TestApp) -> Vec<String> {
    let client = app.source().await;
    let statement =
        format!("select what || ' ' || row::text from ({CATALOG}) all_of(what, row) order by 1");
    let rows = client.query(&statement, &[]);
    rows.await.unwrap().iter().map(|row| row.get(0)).collect()
}

fn assert_same(before: &[String], after: &[String]) {
    let lacks: Vec<&String> = before.iter().filter(|row| !after.contains(row)).collect();
    let more: Vec<&String> = after.iter().filter(|row| !before.contains(row)).collect();
    assert!(
        lacks.is_empty() && more.is_empty(),
        "gone: {lacks:#?}\nleft behind: {more:#?}"
    );
}

#[tokio::test]
async fn teardown_leaves_no_trace_in_the_whole_catalog() {
    let mut app = TestApp::prepare_alone(Options::default()).await;
    let variety = "alter table payment rename to old_payment;
         create table payment (like old_payment, primary key (id)) partition by range (id);
         create table payment_low partition of payment for values from (0) to (100);
         create table payment_high partition of payment for values from (100) to (1000) partition by hash (id);
         create table payment_high_0 partition of payment_high for values with (modulus 1, remainder 0);
         alter table payment_low replica identity full;
         create unique index theirs on distro_queue (id, status); alter table distro_queue replica identity using index theirs;
         alter table release replica identity nothing;
         alter table stream_radar_flag replica identity full";

    run_sql(&app.source().await, variety).await;
    let before = dump(&app).await;

    assert!(before.len() > 200, "{}", before.len());

    for modes in [
        &["full"][..],
        &["index"],
        &["full", "index"],
        &["index", "full"],
    ] {
        for mode in modes {
            app.set("source.replica_identity", mode).setup().await;
            app.walhook_ok(&["check"]).await;
        }
        let during = dump(&app).await;
        assert_ne!(during, before);
        assert_eq!(
            during
                .iter()
                .any(|row| row.contains("walhook_identity_release")),
            modes.last() == Some(&"index")
        );
        app.walhook_ok(&["teardown", "--yes", "--store"]).await;
        assert_same(&before, &dump(&app).await);
    }

    // Without the store's record, Walhook's index is still dropped, and the primary key becomes the
    // replica identity.
    app.set("source.replica_identity", "index").setup().await;
    run_sql(&app.store().await, "drop schema walhook cascade").await;

    let output = app.walhook_ok(&["teardown", "--yes"]).await;
    assert!(
        output.contains("replica identity of public.release: default"),
        "{output}"
    );
    assert!(!dump(&app).await.iter().any(|row| row.contains("walhook")));
}
