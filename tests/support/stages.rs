//! Runs the stages deliver and record without the rest of the process, on a store with rows that
//! the test inserts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::Client;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use walhook::clock::SystemClock;
use walhook::config::{Config, Period};
use walhook::deliver::request::Notification;
use walhook::deliver::{self, Context, OwnFault, Sender, Settings};
use walhook::domain::delivery::DeliveryClass;
use walhook::domain::delivery::{Attempt, Attempted, Delivery, Sent, Signatures, lease_length};
use walhook::domain::event::{EventKind, UserId};
use walhook::domain::settings;
use walhook::domain::webhook::Target;
use walhook::handoff::{FreshDeliveries, Handoff, handoff};
use walhook::private_postgres::PrivatePostgres;
use walhook::record::{self, Promotion};
use walhook::store::attempt::CompletedAttempt;
use walhook::store::audit::{Actor, Via};
use walhook::store::delivery::ClaimRequest;
use walhook::store::webhooks::{self, Edit, Updated};
use walhook::store::{Store, migrate};
use walhook::telemetry::traces::Tracer;
use walhook::vault::{self, Vault};

use super::app::shared_server;
use super::{DEADLINE, eventually};

pub const DATA: &str = r#"{"release_id": 7,  "label_id":1}"#;

/// A request that was sent, as an attempt records it.
pub fn sent() -> Sent {
    Sent {
        url: "http://127.0.0.1:9/".into(),
        signatures: Signatures {
            body: [1; 32],
            standard: [2; 32],
            more: Vec::new(),
        },
        duration: Duration::from_millis(7),
        timing: Default::default(),
        response_headers: Vec::new(),
        excerpt: Vec::new(),
        retry_after: None,
    }
}

/// A store on the shared server, with the vault and the configuration that the stages need.
pub struct Bench {
    _server: Arc<PrivatePostgres>,
    pub client: Client,
    pub store: Store,
    pub vault: Arc<Vault>,
    pub config: Config,
}

/// Running stages deliver and record.
pub struct Running {
    pub handoff: Handoff,
    pub stop: CancellationToken,
    pub stages: JoinHandle<()>,
}

impl Running {
    /// Hands off a delivery as enqueue does. Its capacity is reserved already.
    pub fn hand_over(&self, delivery: Delivery) {
        let fresh = FreshDeliveries {
            deliveries: vec![delivery],
            targets: Vec::new(),
            read_at: Instant::now(),
        };
        assert!(self.handoff.send(fresh).is_empty());
    }

    /// Stops both stages and waits for their ends.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(DEADLINE, self.stages)
            .await
            .expect("they end")
            .expect("they do not panic");
    }
}

impl Bench {
    pub async fn new() -> Bench {
        static COUNT: AtomicU32 = AtomicU32::new(1);
        let server = shared_server().await;
        let name = format!("stages{}", COUNT.fetch_add(1, Ordering::Relaxed));

        server.create_database(&name).await.unwrap();
        let url = server.url(&name);

        migrate::migrate(&url).await.unwrap();
        let client = walhook::postgres::connect(&url).await.unwrap();
        let store = Store::open(&url, 6).unwrap();
        let key = base64::engine::general_purpose::STANDARD.encode([9; 32]);
        let mut config = Config::default();

        config.delivery.allow_http = true;
        config.delivery.allow_networks = vec!["127.0.0.0/8".parse().unwrap()];
        config.delivery.retry_schedule = vec![Period(Duration::from_millis(5)); 9];
        config.delivery.retry_jitter = Period(Duration::from_millis(5));
        config.shutdown.drain = Period(Duration::from_millis(100));

        Bench {
            _server: server,
            client,
            store,
            vault: Arc::new(Vault::new(&[key.into()]).unwrap()),
            config,
        }
    }

    /// Edits the settings of a webhook of the user "u", as the command line does.
    pub async fn edit(
        &self,
        webhook: Uuid,
        change: impl FnOnce(&mut settings::Settings),
    ) -> Updated {
        let user = UserId("u".into());
        let via = Via::CommandLine;
        let found = webhooks::get(&self.store, &user, webhook)
            .await
            .unwrap()
            .unwrap();
        let mut settings = found.settings.clone();
        change(&mut settings);

        let edit = Edit {
            settings,
            headers: None,
            pair: None,
        };
        let actor = Actor { user, via };
        webhooks::update(&self.store, &actor, &found, &edit)
            .await
            .unwrap()
    }

    pub fn settings(&self) -> Settings {
        Settings::from_config(&self.config).unwrap()
    }

    pub fn sender(&self) -> Sender {
        Sender::new(&self.settings(), Arc::new(SystemClock)).unwrap()
    }

    pub fn run(&self) -> Running {
        self.run_with(self.settings())
    }

    pub fn run_with(&self, settings: Settings) -> Running {
        let (handoff, fresh) = handoff();
        let (attempted, outcomes) = mpsc::channel(64);
        let stop = CancellationToken::new();
        let context = Context {
            store: self.store.clone(),
            vault: self.vault.clone(),
            sender: Sender::new(&settings, Arc::new(SystemClock)).unwrap(),
            settings,
        };

        let recorder = self.recorder(handoff.clone(), outcomes);
        let deliverer = deliver::run(
            context,
            fresh,
            handoff.budget.clone(),
            attempted,
            stop.clone(),
        );

        let cancellation = record::cancel_inactive(self.store.clone(), stop.clone());
        let stages = tokio::spawn(async move {
            tokio::join!(deliverer, recorder, cancellation);
        });

        Running {
            handoff,
            stop,
            stages,
        }
    }

    /// Records until the channel is closed.
    pub fn recorder(
        &self,
        handoff: Handoff,
        outcomes: mpsc::Receiver<Attempted>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let schedule = self.config.delivery.schedule();
        let policy = self.config.disable.policy();
        let store = self.store.clone();
        let promotion = Promotion {
            handoff,
            lease_length: lease_length(self.config.delivery.timeout.0),
        };

        record::run(
            store,
            schedule,
            policy,
            promotion,
            outcomes,
            Tracer::default(),
            CancellationToken::new(),
        )
    }

    /// Records attempts. Returns for each whether it was counted.
    pub async fn record(&self, attempts: &[CompletedAttempt]) -> Vec<bool> {
        let mut batch = attempts.to_vec();
        record::record(&self.store, &mut batch, &self.config.disable.policy(), None)
            .await
            .unwrap();
        batch.iter().map(CompletedAttempt::is_counted).collect()
    }

    pub async fn webhook(&self, url: &str) -> (Uuid, SecretString) {
        let id = Uuid::now_v7();
        let secret = vault::new_webhook_secret();
        let sealed = self.vault.seal(id, secret.expose_secret().as_bytes());
        let statement = "insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id) \
                         values ($1, 'u', 'n', $2, array['release.distributed'], $3, $4)";

        self.client
            .execute(statement, &[&id, &url, &sealed.bytes, &sealed.key_id])
            .await
            .unwrap();
        (id, secret)
    }

    pub async fn event(&self, data: &str) -> Uuid {
        let id = Uuid::now_v7();
        let statement = "insert into walhook.event (id, user_id, kind, occurred_at, data) \
                         values ($1, 'u', 'release.distributed', '2026-03-01T09:04:59.123456Z', $2::text::json)";
        self.client.execute(statement, &[&id, &data]).await.unwrap();
        id
    }

    /// Inserts a delivery that is due and not leased.
    pub async fn delivery(&self, webhook: Uuid) -> Uuid {
        self.delivery_of(webhook, self.event(DATA).await).await
    }

    pub async fn delivery_of(&self, webhook: Uuid, event: Uuid) -> Uuid {
        let id = Uuid::now_v7();
        let statement = "insert into walhook.delivery (id, webhook_id, event_id, due_at) values ($1, $2, $3, now())";
        self.client
            .execute(statement, &[&id, &webhook, &event])
            .await
            .unwrap();

        id
    }

    /// Returns outcome, error kind and status of each entry of the attempt log, in order.
    pub async fn log(&self, delivery: Uuid) -> Vec<(i16, String, Option<String>, Option<i16>)> {
        let statement = "select attempt, outcome, error_kind, response_status from walhook.attempt \
                         where delivery_id = $1 order by attempt, id";
        let rows = self.client.query(statement, &[&delivery]).await.unwrap();
        rows.iter()
            .map(|row| (row.get(0), row.get(1), row.get(2), row.get(3)))
            .collect()
    }

    pub async fn is_pending(&self, delivery: Uuid) -> bool {
        let statement = "select exists (select from walhook.pending where id = $1)";
        self.client
            .query_one(statement, &[&delivery])
            .await
            .unwrap()
            .get(0)
    }

    pub async fn wait_for_end(&self, delivery: Uuid) {
        eventually("the delivery's end", || async {
            (!self.is_pending(delivery).await).then_some(())
        })
        .await;
    }

    /// Returns successes, failures, consecutive failures, whether failing, and whether ever
    /// triggered.
    pub async fn counters(&self, webhook: Uuid) -> (i64, i64, i64, bool, bool) {
        let statement = "select success_count, failure_count, consecutive_failures, failing_since is not null, \
                         last_triggered_at is not null from walhook.webhook where id = $1";
        let row = self.client.query_one(statement, &[&webhook]).await.unwrap();
        (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))
    }

    pub async fn last_triggered(&self, webhook: Uuid) -> Option<Timestamp> {
        let statement = "select last_triggered_at from walhook.webhook where id = $1";
        self.client
            .query_one(statement, &[&webhook])
            .await
            .unwrap()
            .get(0)
    }

    pub async fn claim(&self) -> Vec<Delivery> {
        let request = ClaimRequest {
            class: DeliveryClass::Fresh,
            timeout: self.config.delivery.timeout.0,
            start_after: Uuid::nil(),
            end_with: None,
            max_webhooks: 100,
            max_rows: 100,
            max_bytes: usize::MAX,
            per_webhook: 100,
            limits: Vec::new(),
        };
        self.store.claim(&request).await.unwrap().deliveries
    }
}

/// Makes one attempt at a URL, for a webhook that is not stored.
pub async fn attempt(sender: &Sender, url: &str) -> Result<Attempt, OwnFault> {
    let id = Uuid::now_v7();
    let target = Target {
        webhook: id,
        url: url.into(),
        active: true,
        secret: vault::new_webhook_secret(),
        headers: Default::default(),
    };

    let notification = Notification {
        delivery: id,
        webhook: id,
        event: id,
        kind: EventKind::TranscodeFailed.as_str(),
        occurred_at: jiff::Timestamp::now(),
        data: DATA,
        attempt: 1,
        sequence: None,
        test: false,
    };

    sender.attempt(&target, &notification).await
}
