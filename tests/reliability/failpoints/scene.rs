//! A platform with a user, webhooks and a receiver, on a server that all cases share.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use postgres_types::ToSql;
use secrecy::ExposeSecret;
use tokio::sync::OnceCell;
use tokio_postgres::Client;
use uuid::Uuid;
use walhook::private_postgres::{Options, PrivatePostgres};
use walhook::store::migrate::migrate;
use walhook::vault::{self, Vault};

use super::Case;
use super::table::Action;
use crate::support::account::{self, Account, Subscribed, Transition};
use crate::support::{
    Platform, REFERENCE_SCHEMA, Receiver, Sidecar, TestApp, eventually, eventually_within, next_id,
};

pub const PAYMENT: &str = "payment.statement_ready";
pub const OUTLET: &str = "distribution.outlet.status_changed";

/// With the reference schema, and with the store's schema too.
const EMPTY: &str = "empty_template";
const MIGRATED: &str = "migrated_template";
/// The pause between two commits while a point is not reached yet.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(500);
/// How long a process that has woken runs before it is stopped: for a request, a claim or an
/// acknowledgement that is too late.
const LATE_STEP: std::time::Duration = std::time::Duration::from_millis(300);
/// How long a point may take to be reached. Only ends a hanging test.
pub const LIMIT: std::time::Duration = std::time::Duration::from_secs(180);

/// The server of all cases, with the two templates. The walsender's timeout is the lease on the
/// slot.
async fn server() -> Arc<PrivatePostgres> {
    static SERVER: OnceCell<Arc<PrivatePostgres>> = OnceCell::const_new();

    let start = || async {
        let settings = [("max_connections", "1000"), ("wal_sender_timeout", "5s")];
        let server = PrivatePostgres::start(Options {
            settings: &settings,
            ..Options::default()
        })
        .await;
        let server = server.expect("a private PostgreSQL");

        for template in [EMPTY, MIGRATED] {
            server.create_database(template).await.expect("a template");
            let client = walhook::postgres::connect(&server.url(template))
                .await
                .expect("the template");
            client
                .batch_execute(REFERENCE_SCHEMA)
                .await
                .expect("the reference schema");
        }

        migrate(&server.url(MIGRATED))
            .await
            .expect("the store's schema");
        Arc::new(server)
    };

    SERVER.get_or_init(start).await.clone()
}

/// Creates a database for one case, by copying files: to write a copy to the WAL, every slot would
/// have to read it.
async fn app_on(template: &str) -> TestApp {
    static COUNT: AtomicU32 = AtomicU32::new(1);
    let server = server().await;
    let name = format!("failpoint{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let client = walhook::postgres::connect(&server.url("postgres"))
        .await
        .expect("the server");
    let version: i32 = client
        .query_one("select current_setting('server_version_num')::integer", &[])
        .await
        .expect("the version")
        .get(0);
    let strategy = if version >= 150_000 {
        "strategy file_copy"
    } else {
        ""
    };

    let create = format!("create database {name} template {template} {strategy}");

    // Another case may be copying the template: it can be connected to for a moment.
    eventually("a database", async || {
        client.batch_execute(&create).await.ok()
    })
    .await;
    let url = server.url(&name);
    TestApp::with_databases(server, name, url.clone(), url)
}

/// Creates a database with the store's schema, for a second process of a case.
pub async fn prepare_app() -> TestApp {
    app_on(MIGRATED).await
}

/// A webhook and how its receiver responds.
pub struct Webhook {
    pub id: String,
    pub path: &'static str,
    pub in_order: bool,
}

pub struct Scene {
    pub app: TestApp,
    pub case: Case,
    /// The value of `FAILPOINTS` for armed processes.
    pub arms: String,
    pub platform: Platform,
    pub store: Client,
    pub user: i64,
    pub receiver: Receiver,
    pub webhooks: Vec<Webhook>,
    /// What was committed, in this order.
    pub committed: Vec<Transition>,
    /// The case at which a process sleeps that must wake before it is stopped.
    pub sleeping: Option<Case>,
    release: i64,
    outlet: i64,
}

impl Scene {
    /// A platform without webhooks. The store has its schema if `migrated`.
    pub async fn new(case: Case, migrated: bool) -> Scene {
        let mut app = app_on(if migrated { MIGRATED } else { EMPTY }).await;

        // Leases of deliveries last eleven seconds.
        app.set("delivery.timeout", "1s")
            .set("delivery.retry_schedule", &["100ms"; 9].join(","))
            .set("delivery.retry_jitter", "0ms")
            .set("disable.threshold", "1000000");
        let platform = app.platform().await;
        let store = app.store().await;
        let user = platform.user(&[]).await;
        let label = platform.label(user).await;
        let release = platform.release(label).await;
        let outlet = platform.outlet("Example Music").await;
        let receiver = Receiver::start().await;
        let webhooks = Vec::new();
        let committed = Vec::new();
        let sleeping = None;
        let arms = case.armed();

        Scene {
            app,
            case,
            arms,
            platform,
            store,
            user,
            receiver,
            webhooks,
            committed,
            sleeping,
            release,
            outlet,
        }
    }

    /// Inserts a webhook of the user for both events.
    pub async fn add_webhook(&mut self, path: &'static str, ordering: &str) {
        let id = self.insert_webhook(self.user, path, ordering).await;
        self.webhooks.push(Webhook {
            id,
            path,
            in_order: ordering == "strict",
        });
    }

    /// Inserts a webhook, because no process with an API runs before the point is armed.
    pub async fn insert_webhook(&self, user: i64, path: &str, ordering: &str) -> String {
        let id = Uuid::now_v7();
        let secret = vault::new_webhook_secret();
        let vault = Vault::new(&[self.app.setting("secrets.master_key").into()]).expect("a key");
        let sealed = vault.seal(id, secret.expose_secret().as_bytes());
        let insert = "insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id, ordering)
                      values ($1, $2, 'n', $3, $4, $5, $6, $7)";
        let user = user.to_string();
        let url = self.receiver.url(path);
        let events = vec![OUTLET, PAYMENT];

        let parameters: [&(dyn ToSql + Sync); 7] = [
            &id,
            &user,
            &url,
            &events,
            &sealed.bytes,
            &sealed.key_id,
            &ordering,
        ];

        self.store
            .execute(insert, &parameters)
            .await
            .expect("a webhook");
        id.to_string()
    }

    /// Commits a payment and a new entry for an outlet in one transaction, and rolls another
    /// transaction back.
    pub async fn commit(&mut self) {
        let payment = next_id();
        let entry = next_id();
        let never = next_id();

        let pay = |id: i64| {
            format!(
                "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                 values ({id}, {}, 'INV', 1, 1, 'ready')",
                self.user
            )
        };

        let distribute = format!(
            "insert into distro_queue (id, release_id, outlet_id, status)
             values ({entry}, {}, {}, 'scheduled')",
            self.release, self.outlet
        );
        self.platform.rolled_back(&pay(never)).await;
        self.platform
            .transaction(&format!("{}; {distribute}", pay(payment)))
            .await;
        self.committed.extend([
            Transition::payment(payment),
            Transition::outlet_status(entry, "scheduled"),
        ]);
    }

    pub async fn commit_times(&mut self, times: usize) {
        for _ in 0..times {
            self.commit().await;
        }
    }

    /// Arms these points instead.
    pub fn arm(&mut self, cases: &[Case]) {
        self.case = cases[0];
        self.arms = cases
            .iter()
            .map(|case| case.armed())
            .collect::<Vec<_>>()
            .join(";");
    }

    /// Starts `walhook run` with the point armed.
    pub fn spawn_armed(&mut self) -> Sidecar {
        self.app.set_environment("FAILPOINTS", &self.arms);
        let sidecar = self.app.spawn(&[]);
        self.disarm();
        sidecar
    }

    pub fn disarm(&mut self) {
        self.app.set_environment("FAILPOINTS", "");
    }

    /// Whether a process of this app has reached the point.
    pub fn is_reached(&self) -> bool {
        let log = std::fs::read_to_string(self.app.log_file()).unwrap_or_default();
        log.contains(&self.case.report())
    }

    /// Commits until `armed` reaches the point. Starts it again if its port was taken: other tests
    /// choose ports at the same time.
    pub async fn drive(&mut self, armed: &mut Sidecar) {
        let started = std::time::Instant::now();

        while !self.is_reached() {
            let commits = self.committed.len() / 2;
            assert!(
                started.elapsed() < LIMIT,
                "{}: not reached by {commits} commits",
                self.case.name()
            );

            if armed.has_ended() && !self.is_reached() {
                let log = std::fs::read_to_string(self.app.log_file()).unwrap_or_default();
                assert!(
                    log.contains("Address already in use"),
                    "{}: the process has ended",
                    self.case.name()
                );
                *armed = self.spawn_armed();
            }

            self.commit().await;
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub async fn wait_until_reached(&self) {
        let reached = async || self.is_reached().then_some(());
        eventually_within(
            LIMIT,
            &format!("{} to be reached", self.case.name()),
            reached,
        )
        .await;
    }

    /// After the point: waits for the death of a process that kills itself. Returns the processes
    /// that run from now on: one that has not the point armed, and, unless it was killed, the armed
    /// one.
    pub async fn carry_on(&mut self, mut armed: Sidecar) -> Vec<Sidecar> {
        match self.case.action {
            Action::Kill => {
                self.expect_killed(&mut armed).await;
                vec![self.app.spawn(&[])]
            }
            // It must recover by itself.
            Action::Fail => vec![armed],
            // Another replica takes over.
            Action::Stall => {
                self.sleeping = Some(self.case);
                vec![armed, self.app.spawn(&[])]
            }
        }
    }

    /// Waits until the process that sleeps at a point has continued, and what it does too late has
    /// had an effect.
    async fn wait_until_awake(&self) {
        let Some(case) = self.sleeping else { return };
        let is_awake = async || {
            let log = std::fs::read_to_string(self.app.log_file()).unwrap_or_default();
            log.contains(&case.report_of_waking()).then_some(())
        };

        eventually_within(LIMIT, &format!("{} to end", case.name()), is_awake).await;
        tokio::time::sleep(LATE_STEP).await;
        account::settled(&self.store, &self.committed).await;
    }

    /// Waits for the death of a process that kills itself.
    pub async fn expect_killed(&self, armed: &mut Sidecar) {
        let ended = armed.ended().await;
        assert_eq!(ended.signal(), Some(9), "{}: {ended}", self.case.name());
    }

    /// Waits until everything is delivered and a process that sleeps has woken, stops the
    /// processes, and takes the account.
    pub async fn settle(&self, mut processes: Vec<Sidecar>) -> Account {
        account::settled(&self.store, &self.committed).await;
        self.wait_until_awake().await;

        for process in &mut processes {
            process.wait_until_ready().await;
        }

        for process in processes {
            let ended = process.stop().await;
            assert!(ended.success(), "{}: {ended}", self.case.name());
        }

        self.account().await
    }

    /// Takes the account of a settled store.
    pub async fn account(&self) -> Account {
        let requests = self.receiver.requests();
        let subscribed = self
            .webhooks
            .iter()
            .map(|Webhook { id, path, in_order }| Subscribed {
                webhook: id.clone(),
                requests: requests
                    .iter()
                    .filter(|request| request.path == *path)
                    .cloned()
                    .collect(),
                in_order: *in_order,
            });

        let mut account = Account::take(
            &self.store,
            &self.committed,
            &subscribed.collect::<Vec<_>>(),
        )
        .await;

        let count = async |query: &str| -> i64 {
            self.store.query_one(query, &[]).await.expect(query).get(0)
        };

        let gaps = count("select count(*) from walhook.gap where repaired_at is null").await;
        if gaps > 0 {
            account.faults.push(format!("{gaps} gaps are open"));
        }

        // Only an attempt that stalls between the check of its lease and its request can overtake:
        // no receiver knows of leases.
        let may_be_late = self.case.point.name == "attempt_started_request_not_sent"
            && self.case.action == Action::Stall;
        if account.repeated_late > 0 && !may_be_late {
            account.faults.push(format!(
                "{} repeats overtook later deliveries",
                account.repeated_late
            ));
        }

        let log = std::fs::read_to_string(self.app.log_file()).unwrap_or_default();

        // A repair that is killed after its commit leaves the first deliveries of ordered webhooks
        // parked: replicas find them.
        let may_be_parked = self.case.point.name == "repair_committed_heads_not_due";
        let parked = "deliveries waited for others that were no longer pending";
        for wrong in ["panicked at", parked] {
            if log.contains(wrong) && !(wrong == parked && may_be_parked) {
                account.faults.push(format!("the server log has: {wrong}"));
            }
        }

        account
    }
}
