//! Capture through PgBouncer in transaction mode: each transaction may run in another session of
//! the server.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};
use walhook::postgres;
use walhook::private_postgres::{Options, StopMode, free_port};
use walhook::store::Store;

use super::crash::store_elsewhere;
use super::{by_triggers, events, number, prepared};
use crate::support::{TestApp, are_installed, eventually, run_sql};

/// The number of server sessions that all clients share.
const POOL_SIZE: usize = 4;

/// Ended when dropped.
struct Pooler {
    _child: Child,
    _directory: tempfile::TempDir,
    port: u16,
}

impl Pooler {
    async fn start(app: &TestApp) -> Pooler {
        use std::os::unix::fs::PermissionsExt;

        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();

        let port = free_port().unwrap();
        let file = directory.path().join("pgbouncer.ini");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {POOL_SIZE}\nserver_round_robin = 1\n",
            app.server.port()
        );

        // One user, and so one pool: with `any`, PgBouncer logs in as the user of the database's
        // line.
        let settings = settings.replace(
            "* = host",
            &format!("{}_platform = user=postgres host", app.name),
        );
        std::fs::write(&file, settings).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();

        // It refuses to run as root, as PostgreSQL does.
        let command = app.server.program("env");
        let words: Vec<_> = command
            .as_std()
            .get_args()
            .map(|word| word.to_owned())
            .collect();

        let mut pooler = match words.is_empty() {
            true => Command::new("pgbouncer"),
            false => {
                let mut command = Command::new(command.as_std().get_program());
                command
                    .args(&words[..words.len() - 1])
                    .arg("/usr/sbin/pgbouncer");
                command
            }
        };

        let child = pooler
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn();

        let pooler = Pooler {
            _child: child.expect("pgbouncer starts"),
            _directory: directory,
            port,
        };

        let url = pooler.url(app);
        eventually("the pooler to answer", async || {
            postgres::connect(&url).await.ok()
        })
        .await;

        pooler
    }

    fn url(&self, app: &TestApp) -> String {
        app.source_url.replace(
            &format!(":{}/", app.server.port()),
            &format!(":{}/", self.port),
        )
    }
}

/// Returns the settings, prepared statements and advisory locks that are in force in a session
/// beyond what PgBouncer itself sets.
const LEFT: &str = "select pg_backend_pid(), array(
    select name || ' = ' || setting from pg_settings
        where source = 'session' and name <> all (array['client_encoding', 'DateStyle', 'TimeZone',
            'standard_conforming_strings', 'application_name', 'IntervalStyle'])
    union all select 'prepared: ' || statement from pg_prepared_statements
    union all select 'lock: ' || objid from pg_locks where locktype = 'advisory' and pid = pg_backend_pid())";

/// Returns how many sessions the pool has, and what earlier transactions left in them.
async fn left_behind(url: &str) -> (usize, Vec<String>) {
    let mut sessions = BTreeSet::new();
    let mut found = BTreeSet::new();

    // An open transaction holds its session, so each of these clients gets another one.
    let mut holders = Vec::new();

    for _ in 0..POOL_SIZE {
        let client = postgres::connect(url).await.unwrap();
        run_sql(&client, "begin").await;
        let row = client.query_typed_one(LEFT, &[]).await.unwrap();

        sessions.insert(row.get::<_, i32>(0));
        found.extend(row.get::<_, Vec<String>>(1));
        holders.push(client);
    }

    for client in holders {
        run_sql(&client, "commit").await;
    }

    (sessions.len(), found.into_iter().collect())
}

#[tokio::test]
async fn capture_works_through_a_pooler_and_leaves_nothing_in_its_sessions() {
    if !are_installed(&["pgbouncer"]) {
        return;
    }

    let mut app = prepared().await;
    let pooler = Pooler::start(&app).await;

    app.set("source.url", &pooler.url(&app));
    let platform = app.platform().await;
    let user = platform.user(&["stream_radar"]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("Shop").await;

    app.setup().await;
    app.run().await;

    // Other clients use the same sessions in turn.
    let others: Vec<_> = (0..6)
        .map(|_| pooler.url(&app))
        .map(|url| {
            tokio::spawn(async move {
                let client = postgres::connect(&url).await.unwrap();

                for _ in 0..200 {
                    run_sql(&client, "begin; select 1; commit").await;
                }
            })
        })
        .collect();

    for _ in 0..20 {
        let entry = platform.distribution(release, outlet, "scheduled").await;
        platform.set_distribution_status(entry, "batched").await;
    }

    for other in others {
        other.await.unwrap();
    }

    app.wait_for_events(40).await;
    assert!(
        events(&app)
            .await
            .iter()
            .all(|(_, data)| data["outlet_name"] == "Shop")
    );

    let url = pooler.url(&app);
    let (sessions, left) = left_behind(&url).await;

    assert_eq!(
        sessions, POOL_SIZE,
        "every session of the pool is inspected"
    );
    assert!(
        left.is_empty(),
        "other clients find in their sessions: {left:?}"
    );

    // The statement finds what is left: in one transaction, because the next one may get another
    // session.
    let client = postgres::connect(&url).await.unwrap();
    run_sql(&client, "begin; set statement_timeout = '7s'").await;

    let row = client.query_typed_one(LEFT, &[]).await.unwrap();
    assert_eq!(row.get::<_, Vec<String>>(1), ["statement_timeout = 7000"]);
    assert_eq!(
        number(&app.store().await, "select count(*) from walhook.gap").await,
        0
    );
}

#[tokio::test]
async fn a_pool_for_requests_omits_parameters_that_a_pooler_rejects() {
    if !are_installed(&["pgbouncer"]) {
        return;
    }

    let app = prepared().await;
    let pooler = Pooler::start(&app).await;
    let limited =
        |url: &str| Store::open_for_requests(url, 1, Duration::from_millis(1_234)).unwrap();

    let timeout = async |store: Store| -> String {
        let connection = store.connection().await.unwrap();
        let rows = connection
            .simple_query("show statement_timeout")
            .await
            .unwrap();
        format!("{rows:?}")
    };

    assert!(timeout(limited(&app.source_url)).await.contains("1234ms"));
    assert!(!timeout(limited(&pooler.url(&app))).await.contains("1234ms"));
}

/// The pooler hides the crash: the connection over which a page was read leads to the recovered
/// server.
#[tokio::test]
async fn rows_that_a_crash_undoes_before_their_page_is_flushed_raise_no_events() {
    if !are_installed(&["pgbouncer"]) {
        return;
    }

    let settings = [
        ("synchronous_commit", "off"),
        ("wal_writer_delay", "10s"),
        ("full_page_writes", "off"),
    ];
    let mut app = TestApp::prepare_alone(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;

    by_triggers(&mut app);
    let _store = store_elsewhere(&mut app).await;
    let pooler = Pooler::start(&app).await;

    app.set("source.url", &pooler.url(&app));
    app.setup().await;

    // The second page waits for longer than the server needs to crash and to recover. If it does
    // not, the rows are flushed and stay.
    app.set_environment(
        "FAILPOINTS",
        "outbox_page_read_rows_not_flushed=1*off->1*return(stall 10000)",
    );
    app.run_with(&["--roles", "capture"]).await;

    let user = app.platform().await.user(&[]).await;
    let pay = async |app: &TestApp, invoice: &str, commit: &str| {
        let insert = "begin; set local synchronous_commit = {commit};
            insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
            select coalesce(max(id), 0) + 1, {user}, '{invoice}', 1, 1, 'ready' from payment; commit";
        let insert = insert
            .replace("{commit}", commit)
            .replace("{invoice}", invoice);
        app.source()
            .await
            .batch_execute(&insert.replace("{user}", &user.to_string()))
            .await
            .unwrap();
    };

    pay(&app, "first", "on").await;
    app.wait_for_events(1).await;

    let client = app.source().await;
    eventually("the outbox to be cleared", async || {
        (number(&client, "select count(*) from walhook_capture.outbox").await == 0).then_some(())
    })
    .await;
    pay(&app, "undone", "off").await;

    eventually("the page to be read", async || {
        std::fs::read_to_string(app.log_file())
            .unwrap()
            .contains("outbox_page_read_rows_not_flushed")
            .then_some(())
    })
    .await;

    app.server.restart(StopMode::Immediate).await.unwrap();
    pay(&app, "last", "on").await;

    let last = "select count(*) from walhook.event where data::jsonb->>'invoice_number' = 'last'";
    app.wait_for_count(last, 1).await;

    let invoices = async |client, query| -> Vec<String> {
        let client: tokio_postgres::Client = client;
        client
            .query(query, &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect()
    };

    let committed = invoices(
        app.source().await,
        "select invoice_number from payment order by id",
    )
    .await;
    let raised = "select data::jsonb->>'invoice_number' from walhook.event order by occurred_at";
    assert_eq!(invoices(app.store().await, raised).await, committed);
}
