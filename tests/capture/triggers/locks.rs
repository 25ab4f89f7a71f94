//! Locks on the platform's tables: setup and teardown wait for them briefly, and let the statements
//! of other sessions proceed in between.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;
use tokio_postgres::Client;
use walhook::private_postgres::Options;

use super::{by_triggers, number, prepared};
use crate::support::{TestApp, eventually, one, run_sql};

/// An index as setup creates it.
pub const INDEX: &str = "create unique index walhook_identity_payment on payment (id, status)";
pub const INDEXES: &str =
    "select count(*) from pg_class where relname like 'walhook\\_identity\\_%'";

/// Records in the store what setup has found as the replica identity of `payment`.
pub async fn remember_identity(app: &TestApp, identity: &str, index: Option<&str>) {
    let table: u32 = one(&app.source().await, "select 'payment'::regclass::oid").await;

    let remember =
        "insert into walhook.replica_identity (table_oid, table_name, identity, index_name)
         values ($1, 'public.payment', $2::text::\"char\", $3)";
    app.store()
        .await
        .execute(remember, &[&table, &identity, &index])
        .await
        .unwrap();
}

/// A session with an open transaction that has read a table, such as `pg_dump` or a report.
pub async fn long_report(app: &TestApp) -> Client {
    let session = app.source().await;
    run_sql(
        &session,
        "set application_name = 'nightly report'; begin; select from payment",
    )
    .await;

    session
}

/// Writes to the table again and again until it is stopped. Fails if a statement waits for longer
/// than four seconds: five times as long as Walhook may wait for a lock.
pub struct Probe {
    stopped: Arc<AtomicBool>,
    task: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl Probe {
    pub async fn start(app: &TestApp) -> Probe {
        let session = app.source().await;
        run_sql(&session, "set statement_timeout = '4s'").await;

        let stopped = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&stopped);

        let task = tokio::spawn(async move {
            while !until.load(Ordering::Relaxed) {
                session
                    .batch_execute("delete from payment where false")
                    .await?;
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }

            Ok(())
        });

        Probe { stopped, task }
    }

    pub async fn assert_never_blocked(self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.task
            .await
            .unwrap()
            .expect("no other session waits for long");
    }
}

pub async fn identity(client: &Client) -> String {
    let query = "select relreplident::text from pg_class where oid = 'payment'::regclass";
    one(client, query).await
}

/// Runs a command, which must give up on the table without blocking it. Returns its error.
async fn refused(app: &TestApp, command: &[&str]) -> String {
    let probe = Probe::start(app).await;
    let refused = app.walhook(command).await;

    assert!(!refused.status.success(), "{command:?}");
    probe.assert_never_blocked().await;
    String::from_utf8(refused.stderr).unwrap()
}

#[tokio::test]
async fn teardown_gives_up_on_a_locked_table_instead_of_blocking_it() {
    let app = prepared().await;
    app.setup().await;

    let owner = app.source().await;
    let identity_index = format!(
        "{INDEX}; alter table payment replica identity using index walhook_identity_payment"
    );
    for (leftover, expected) in [(&*identity_index, "i"), ("", "d")] {
        run_sql(&owner, leftover).await;

        if expected == "i" {
            // Setup has found an index that another store's setup had left.
            remember_identity(&app, "i", Some("walhook_identity_payment")).await;
        }

        let report = long_report(&app).await;
        let error = refused(&app, &["teardown", "--yes"]).await;

        assert!(
            error.contains(r#"table "public"."payment" is locked by process "#),
            "{error}"
        );
        assert!(error.contains("(nightly report)"), "{error}");
        assert_eq!(identity(&owner).await, expected);
        run_sql(&report, "commit").await;
        app.walhook_ok(&["teardown", "--yes"]).await;
        assert_eq!(identity(&owner).await, "d");
        assert_eq!(number(&owner, INDEXES).await, 0);

        // For the triggers, which were dropped.
        app.setup().await;
    }
}

#[tokio::test]
async fn setup_enables_triggers_again_without_blocking_the_table() {
    let app = prepared().await;
    app.setup().await;

    let owner = app.source().await;
    run_sql(&owner, "alter table payment disable trigger walhook_insert").await;

    let open = app.source().await;
    run_sql(&open, "begin; delete from payment where false").await;

    let error = refused(&app, &["setup"]).await;
    assert!(
        error.contains("could not be locked") && error.contains(", on payment holds them"),
        "{error}"
    );
    run_sql(&open, "commit").await;
    app.setup().await;

    let disabled =
        "select count(*) from pg_trigger where tgname = 'walhook_insert' and tgenabled <> 'A'";
    assert_eq!(number(&owner, disabled).await, 0);
}

/// Creating and dropping hundreds of triggers takes longer than Walhook may wait for locks.
#[tokio::test]
async fn the_time_that_many_partitions_take_does_not_count_as_waiting() {
    const SETTINGS: &[(&str, &str)] = &[
        ("deadlock_timeout", "100ms"),
        ("max_locks_per_transaction", "1024"),
    ];
    let mut app = TestApp::prepare_alone(Options {
        settings: SETTINGS,
        ..Options::default()
    })
    .await;

    by_triggers(&mut app);
    let owner = app.source().await;
    let partitioned = "alter table payment rename to before;
        create table payment (like before including defaults, primary key (id)) partition by range (id);
        do $$ begin for n in 0..799 loop
            execute format('create table payment_%s partition of payment for values from (%s) to (%s)', n, n, n + 1);
        end loop; end $$;
        drop table before cascade";

    run_sql(&owner, partitioned).await;
    app.setup().await;

    let triggers = "select count(*) from pg_trigger where tgrelid::regclass::text like 'payment%' and tgenabled = 'A'";

    // Three for each row of each partition, and one for truncation.
    assert_eq!(number(&owner, triggers).await, 3 * 801 + 1);
    app.walhook_ok(&["teardown", "--yes"]).await;
    assert_eq!(number(&owner, triggers).await, 0);
}

/// A server on which an autovacuum of the table takes minutes, whenever it starts.
async fn with_slow_autovacuum() -> (TestApp, Client) {
    let settings = [("autovacuum_naptime", "1s")];
    let app = TestApp::prepare_alone(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;
    let owner = app.source().await;

    // One page per tenth of a second.
    let slow = "alter table payment set (autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1,
            autovacuum_vacuum_threshold = 1, autovacuum_vacuum_scale_factor = 0);
         insert into payment (id, invoice_number, amount, total_due_usd, status)
            select id, repeat('x', 500), 1, 1, 'draft' from generate_series(1, 40000) id;
         update payment set amount = 2";
    run_sql(&owner, slow).await;

    (app, owner)
}

async fn wait_for_autovacuum(client: &Client) {
    let vacuums = "select count(*) from pg_locks join pg_stat_activity using (pid)
        where relation = 'payment'::regclass and granted and mode = 'ShareUpdateExclusiveLock'
            and backend_type = 'autovacuum worker'";
    eventually("an autovacuum", async || {
        (number(client, vacuums).await == 1).then_some(())
    })
    .await;
}

/// PostgreSQL cancels an autovacuum only for a session that waits for longer than
/// `deadlock_timeout`. Walhook waits for that in a way that blocks no statement that reads or
/// writes rows.
#[tokio::test]
async fn setup_and_teardown_do_not_wait_for_an_autovacuum() {
    let (mut app, owner) = with_slow_autovacuum().await;

    for capture in ["wal", "trigger"] {
        if capture == "trigger" {
            by_triggers(&mut app);
        }

        for command in [&["setup"][..], &["teardown", "--yes"]] {
            wait_for_autovacuum(&owner).await;
            let probe = Probe::start(&app).await;
            app.walhook_ok(command).await;
            probe.assert_never_blocked().await;
        }

        assert_eq!(identity(&owner).await, "d");
    }
}

#[tokio::test]
async fn setup_names_an_autovacuum_that_the_role_may_not_end() {
    let (mut app, owner) = with_slow_autovacuum().await;
    by_triggers(&mut app);

    let grants = format!(
        "create role walhook login; grant create on database {0}_platform to walhook; grant create on database {0}_store to walhook;
         grant select, trigger on all tables in schema public to walhook",
        app.name
    );
    run_sql(&owner, &grants).await;

    for (key, url) in [
        ("source.url", app.source_url.clone()),
        ("store.url", app.store_url.clone()),
    ] {
        app.set(key, &url.replace("postgres@", "walhook@"));
    }

    wait_for_autovacuum(&owner).await;
    let error = refused(&app, &["setup"]).await;

    assert!(
        error.contains(" (autovacuum), on payment holds them"),
        "{error}"
    );
    run_sql(
        &owner,
        "alter table payment set (autovacuum_enabled = false)",
    )
    .await;
    app.setup().await;
}
