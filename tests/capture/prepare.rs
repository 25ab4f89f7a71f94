//! `walhook setup`, `walhook check` and `walhook teardown`.

use walhook::private_postgres::Options;
use walhook::store::Store;

use crate::support::{TestApp, one, run_sql};
use crate::wait_until_unready;

/// Everything on the primary that setup may change.
async fn catalog(app: &TestApp) -> Vec<String> {
    let statement = format!(
        "select 'slot ' || slot_name from pg_replication_slots where slot_name = '{0}'
         union all select 'publication ' || pubname from pg_publication
         union all select 'member ' || prrelid::regclass from pg_publication_rel
         union all select 'identity ' || oid::regclass || ' ' || relreplident::text from pg_class
            where relnamespace = 'public'::regnamespace and relkind = 'r'
         union all select 'schema ' || nspname from pg_namespace where nspname !~ '^pg_'
         order by 1",
        app.name
    );

    let rows = app.source().await.query(&statement, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

async fn seeded(app: &TestApp) -> Vec<i64> {
    let rows = app
        .store()
        .await
        .query(
            "select release_id from walhook.distributed_release order by 1",
            &[],
        )
        .await
        .unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Runs a command that fails, and returns its error.
async fn refusal(app: &TestApp, arguments: &[&str]) -> String {
    let output = app.walhook(arguments).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[tokio::test]
async fn a_second_setup_changes_nothing() {
    let app = TestApp::prepare().await;
    let platform = app.platform().await;
    let label = platform.label(platform.user(&[]).await).await;
    let before = platform.release(label).await;

    platform.set_delivery_status(before, "distributed").await;
    let output = app.walhook_ok(&["setup"]).await;

    assert!(
        output.contains("1 releases were distributed before"),
        "{output}"
    );
    let prepared = catalog(&app).await;

    for line in [
        "identity release f",
        "identity payment f",
        "identity label d",
        "identity user_addon d",
    ] {
        assert!(
            prepared.iter().any(|have| have == line),
            "{line} in {prepared:?}"
        );
    }

    assert_eq!(
        prepared
            .iter()
            .filter(|line| line.starts_with("member "))
            .count(),
        12,
        "{prepared:?}"
    );

    let between = platform.release(label).await;
    platform.set_delivery_status(between, "distributed").await;

    let again = app.walhook_ok(&["setup"]).await;
    assert!(again.contains("everything is set up"), "{again}");
    assert_eq!(
        seeded(&app).await,
        [before],
        "a second setup must not seed again"
    );
    assert_eq!(catalog(&app).await, prepared);
}

#[tokio::test]
async fn setup_completes_a_publication_and_keeps_sufficient_identities() {
    let app = TestApp::prepare().await;
    let source = app.source().await;
    let statement = format!(
        "create unique index watched on payment (id, status);
         alter table payment replica identity using index watched;
         create publication \"{}\" for table payment with (publish = 'insert')",
        app.name
    );

    run_sql(&source, &statement).await;
    app.setup().await;

    let prepared = catalog(&app).await;
    assert!(
        prepared.contains(&"identity payment i".to_owned()),
        "{prepared:?}"
    );

    assert_eq!(
        prepared
            .iter()
            .filter(|line| line.starts_with("member "))
            .count(),
        12,
        "{prepared:?}"
    );

    let row = source.query_one(
        "select pubupdate and pubdelete and pubtruncate and pubviaroot from pg_publication",
        &[],
    );
    assert!(row.await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn teardown_leaves_the_catalog_as_it_was() {
    let app = TestApp::prepare().await;
    let source = app.source().await;
    let statement = "create unique index by_id on payment (id); alter table payment replica identity using index by_id;
         alter table release replica identity nothing; alter table stream_radar_flag replica identity full";

    run_sql(&source, statement).await;
    let before = catalog(&app).await;

    app.setup().await;
    assert_ne!(catalog(&app).await, before);

    let refused = refusal(&app, &["teardown"]).await;
    assert!(refused.contains("--yes"), "{refused}");
    app.walhook_ok(&["teardown", "--yes"]).await;
    assert_eq!(catalog(&app).await, before);

    let store = Store::open(&app.store_url, 1).unwrap();
    assert_eq!(store.checkpoint(&app.name).await.unwrap(), None);
    assert!(store.found_identities().await.unwrap().is_empty());

    let again = app.walhook_ok(&["teardown", "--yes", "--store"]).await;
    assert!(again.contains("schema walhook dropped"), "{again}");
    assert!(!store.has_schema().await.unwrap());

    let nothing = app.walhook_ok(&["teardown", "--yes", "--store"]).await;
    assert!(nothing.contains("nothing is left to remove"), "{nothing}");

    // Setup works again afterwards.
    app.setup().await;
}

/// A DBA has run setup as the owner, and Walhook's own role has only what streaming needs.
#[tokio::test]
async fn teardown_by_another_role_names_what_the_owner_must_remove_and_changes_nothing() {
    let mut app = TestApp::prepare().await;
    let source = app.source().await;
    let before = catalog(&app).await;

    app.set("source.replica_identity", "index");
    app.setup().await;

    let prepared = catalog(&app).await;
    let role = format!("{}_reader", app.name);
    let grants = format!("create role {role} login replication; grant pg_read_all_data to {role}");

    run_sql(&source, &grants).await;
    let as_owner = app.setting("source.url").to_owned();
    let as_reader = as_owner.replace("postgres://postgres@", &format!("postgres://{role}@"));

    assert_ne!(as_reader, as_owner);
    app.set("source.url", &as_reader);

    let refused = refusal(&app, &["teardown", "--yes"]).await;
    let named = [
        format!(
            "publication {}: belongs to another role; its owner must run what `walhook teardown --print` prints",
            app.name
        ),
        "replica identity of public.release: belongs to another role".to_owned(),
        "index walhook_identity_release: belongs to another role".to_owned(),
    ];

    assert!(
        named.iter().all(|named| refused.contains(named)),
        "{refused}"
    );
    assert_eq!(catalog(&app).await, prepared);

    let script = app.walhook_ok(&["teardown", "--print"]).await;
    assert_eq!(catalog(&app).await, prepared);
    run_sql(&source, &script).await;

    let slot = app.walhook_ok(&["teardown", "--yes"]).await;
    assert_eq!(slot.trim(), format!("slot {}: dropped", app.name));
    assert_eq!(catalog(&app).await, before);
}

/// On a platform with hundreds of tables, a server would compile the statements that read the
/// catalog, and one with statistics would read the columns of every table.
#[tokio::test]
async fn statements_on_a_large_catalog_read_only_what_they_need() {
    const OTHERS: usize = 500;
    const PARTITIONS: usize = 300;
    let app = TestApp::prepare_alone(Options {
        settings: &[
            ("session_preload_libraries", "auto_explain"),
            ("auto_explain.log_min_duration", "0"),
            ("auto_explain.log_analyze", "on"),
            ("jit_above_cost", "0"),
            ("max_locks_per_transaction", "200"),
        ],
        ..Options::default()
    })
    .await;

    let create = format!(
        "do $$ begin
             for i in 1..{OTHERS} loop
                 execute format('create table other_%s (id bigint, a text, b text, c text)', i);
                 if i % 100 = 0 then commit; end if;
             end loop;
             create table of_days (id bigint, day date) partition by range (day);
             for i in 1..{PARTITIONS} loop
                 execute format(
                     'create table day_%s partition of of_days for values from (%L) to (%L)',
                     i, date '2026-01-01' + i, date '2026-01-02' + i
                 );
                 if i % 100 = 0 then commit; end if;
             end loop;
         end $$"
    );
    let source = app.source().await;
    run_sql(&source, &create).await;
    run_sql(&source, "analyze").await;

    app.setup().await;
    app.walhook_ok(&["check"]).await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let process = app.replica(&[]).await;
    platform.payment(user, "ready").await;
    assert!(process.stop().await.success());

    let log = tokio::fs::read_to_string(app.server.log_file())
        .await
        .unwrap();
    let plans: Vec<&str> = log
        .split("LOG: ")
        .filter(|entry| entry.contains("Tables, each followed by its partitions"))
        .collect();
    assert!(!plans.is_empty(), "the statements are in the log");

    for plan in plans {
        assert!(!plan.contains("JIT:"), "{plan}");

        let loops = plan.split("loops=").skip(1).map(|rest| {
            let digits = rest.find(|letter: char| !letter.is_ascii_digit());
            rest[..digits.unwrap_or(rest.len())]
                .parse::<usize>()
                .unwrap()
        });
        assert!(loops.max().unwrap() < OTHERS, "{plan}");
    }
}

#[tokio::test]
async fn without_logical_decoding_setup_changes_nothing() {
    let app = TestApp::prepare_alone(Options {
        settings: &[("wal_level", "replica")],
        ..Options::default()
    })
    .await;
    let before = catalog(&app).await;
    let refused = refusal(&app, &["setup"]).await;

    assert!(
        refused.contains("wal_level: replica; set wal_level = logical"),
        "{refused}"
    );
    assert_eq!(refused.trim().lines().count(), 1, "{refused}");
    assert_eq!(catalog(&app).await, before);

    assert!(
        !Store::open(&app.store_url, 1)
            .unwrap()
            .has_schema()
            .await
            .unwrap(),
        "the store is untouched too"
    );

    let checked = app.walhook(&["check"]).await;
    assert_eq!(checked.status.code(), Some(1));

    let lines = String::from_utf8(checked.stdout).unwrap();
    assert!(
        lines
            .lines()
            .any(|line| line.starts_with("fail  wal_level: replica; ")),
        "{lines}"
    );
}

#[tokio::test]
async fn setup_reports_every_problem_before_it_changes_anything() {
    let mut app = TestApp::prepare().await;
    let owner = app.source().await;
    let role = format!("{}_role", app.name);
    let statement = format!(
        "create role {role} login; alter table payment drop column currency; drop table preflight_report;
         grant create on database {}_platform to {role}",
        app.name
    );

    run_sql(&owner, &statement).await;
    let before = catalog(&app).await;
    let url = app.source_url.replace("postgres@", &format!("{role}@"));

    app.set("source.url", &url);
    let refused = refusal(&app, &["setup"]).await;

    for problem in [
        "may not replicate",
        "table public.payment: lacks currency; add what is missing, or set source.tables.payment.columns.currency to",
        "table public.preflight_report: missing; create it, or set source.tables.preflight_report.table to its name",
        "replica identity of public.release: does not cover id, review_status, delivery_status, so transitions cannot be detected; \
         let a DBA run what `walhook setup --print` prints",
        "table public.release privilege: cannot read id",
        "table public.user_addon privilege: cannot read user_id, addon",
    ] {
        assert!(refused.contains(problem), "{problem} in {refused}");
    }

    assert_eq!(catalog(&app).await, before);

    assert!(
        !Store::open(&app.store_url, 1)
            .unwrap()
            .has_schema()
            .await
            .unwrap()
    );

    run_sql(&owner, &format!("drop owned by {role}; drop role {role}")).await;
}

#[tokio::test]
async fn a_slot_without_a_checkpoint_is_rejected_with_a_fix() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let store = app.store().await;

    // As if setup had been killed between the slot's creation and its first checkpoint: nothing can
    // have been read from it.
    let unfinished =
        "delete from walhook.checkpoint; insert into walhook.slot_creation (slot) values ($1)"
            .replace("$1", &format!("'{}'", app.name));
    run_sql(&store, &unfinished).await;

    let output = app.walhook_ok(&["setup"]).await;
    assert!(
        output.contains("an earlier setup did not finish") && output.contains("created at"),
        "{output}"
    );
    assert!(
        app.walhook_ok(&["setup"])
            .await
            .contains("everything is set up")
    );
    run_sql(&store, "drop schema walhook cascade").await;

    let refused = refusal(&app, &["setup"]).await;
    assert!(refused.contains("`walhook teardown`"), "{refused}");
    app.walhook_ok(&["teardown", "--yes"]).await;
    app.setup().await;
}

#[tokio::test]
async fn a_missing_slot_is_recorded_as_a_gap() {
    let app = TestApp::prepare().await;
    app.setup().await;
    app.drop_slot().await;

    // The second one finds it recorded.
    for _ in 0..2 {
        let sidecar = app.spawn(&[]);
        wait_until_unready(&sidecar, "gap: changes were lost (slot_missing)").await;
        sidecar.kill().await;
    }

    let refused = refusal(&app, &["setup"]).await;
    assert!(refused.contains("is missing"), "{refused}");

    let store = app.store().await;
    let gaps = store
        .query(
            "select slot, reason from walhook.gap where repaired_at is null",
            &[],
        )
        .await
        .unwrap();

    let gaps: Vec<(&str, &str)> = gaps.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(gaps, [(app.name.as_str(), "slot_missing")]);

    // Teardown deletes the checkpoint, and the gap with it.
    app.walhook_ok(&["teardown", "--yes"]).await;
    let open = one::<i64>(
        &store,
        "select count(*) from walhook.gap where repaired_at is null",
    )
    .await;
    assert_eq!(open, 0);
}

#[tokio::test]
async fn run_names_what_is_missing() {
    let mut app = TestApp::prepare().await;
    walhook::store::migrate::migrate(&app.store_url)
        .await
        .unwrap();

    let refused = refusal(&app, &["run"]).await;
    assert!(refused.contains("run `walhook setup`"), "{refused}");

    app.setup().await;
    let owner = app.source().await;

    // A table that nobody has written to would be prepared at once.
    let written = "insert into payment (id, invoice_number, amount, total_due_usd, status) values (1, 'A', 1, 1, 'draft')";
    run_sql(
        &owner,
        &format!("{written}; alter table payment replica identity default"),
    )
    .await;

    // Events of other tables are captured.
    let sidecar = app.spawn(&[]);
    wait_until_unready(
        &sidecar,
        "gap: changes were lost (identity_lost): run `walhook repair`",
    )
    .await;
    wait_until_unready(
        &sidecar,
        "tables: replica identity of public.payment: does not cover id, status, so transitions cannot be detected; run `walhook setup`",
    )
    .await;
    sidecar.kill().await;

    app.set("source.capture", "trigger");
    let refused = refusal(&app, &["run"]).await;
    assert!(refused.contains("is not set up"), "{refused}");
}

#[tokio::test]
async fn another_cluster_is_rejected() {
    let app = TestApp::prepare().await;
    app.setup().await;
    run_sql(
        &app.store().await,
        "update walhook.checkpoint set system_identifier = 1",
    )
    .await;

    let refused = refusal(&app, &["run"]).await;
    assert!(refused.contains("another cluster"), "{refused}");
}

#[tokio::test]
async fn print_changes_nothing_and_prints_the_sql_that_setup_needs() {
    let app = TestApp::prepare().await;
    let before = catalog(&app).await;
    let sql = app.walhook_ok(&["setup", "--print"]).await;

    assert_eq!(catalog(&app).await, before);
    run_sql(&app.source().await, &sql).await;

    let output = app.walhook_ok(&["setup"]).await;
    assert!(
        !output.contains("identity") && !output.contains("publication"),
        "only the slot was left to create: {output}"
    );
}

#[tokio::test]
async fn check_passes_after_setup_and_fails_before() {
    let app = TestApp::prepare().await;
    let before = app.walhook(&["check"]).await;

    assert_eq!(before.status.code(), Some(1));
    let lines = String::from_utf8(before.stdout).unwrap();

    assert!(
        lines.contains(&format!(
            "fail  slot {}: missing; run `walhook setup`",
            app.name
        )),
        "{lines}"
    );

    app.setup().await;
    let lines = app.walhook_ok(&["check"]).await;

    assert!(
        lines
            .lines()
            .take_while(|line| !line.is_empty())
            .all(|line| line.starts_with("ok ") || line.starts_with("warn ")),
        "{lines}"
    );

    assert!(lines.ends_with(", 0 failures\n"), "{lines}");
    assert!(lines.contains("warn  max_slot_wal_keep_size"), "{lines}");
    assert!(lines.contains("ok    wal_sender_timeout: 60 s"), "{lines}");
    assert!(lines.contains("ok    store database"), "{lines}");
}

#[tokio::test]
async fn check_warns_of_a_shared_database_and_row_level_security() {
    let mut app = TestApp::prepare().await;
    let owner = app.source().await;
    let role = format!("{}_role", app.name);
    let statement = format!(
        "create role {role} login replication; grant select on all tables in schema public to {role};
         alter table label enable row level security"
    );

    run_sql(&owner, &statement).await;
    let shared = app.source_url.clone();

    app.set(
        "source.url",
        &shared.replace("postgres@", &format!("{role}@")),
    )
    .set("store.url", &shared);
    let lines = String::from_utf8(app.walhook(&["check"]).await.stdout).unwrap();

    assert!(
        lines.contains("fail  table public.label row security"),
        "{lines}"
    );
    assert!(lines.contains("warn  store database"), "{lines}");
    run_sql(&owner, &format!("drop owned by {role}; drop role {role}")).await;
}
