//! The API on a port of its own, with a migrated store and a stand-in for the sending side.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use secrecy::ExposeSecret;
use tokio::net::TcpListener;
use tokio_postgres::Client;
use url::Url;
use uuid::Uuid;
use walhook::api::{ApiState, router};
use walhook::app::{check_url, look_up};
use walhook::auth::JwtVerifier;
use walhook::config::Config;
use walhook::deliver::guard::Guard;
use walhook::domain::delivery::{Answer, Attempt, Delivery, ErrorKind, Sent, Signatures};
use walhook::domain::event::{EventKind, UserId};
use walhook::domain::webhook::Target;
use walhook::manage::{
    LogDetail, Manage, NewToken, Receivers, RenderedRequest, SigningSecret, UncallableHost, tokens,
};
use walhook::store::{Store, StoreError, migrate};
use walhook::vault::Vault;

use crate::support::{Api, TestApp, eventually, one};

pub const BASE: &str = "/api/public";
/// The number of the store's connections.
pub const CONNECTIONS: usize = 8;
/// A URL that the stand-in for the guard rejects without a lookup.
pub const PLAIN_URL: &str = "http://receiver.example/in";
/// A URL that it rejects after a lookup.
pub const BLOCKED_URL: &str = "https://blocked.example/in";
const MASTER_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

pub struct Service {
    pub app: TestApp,
    pub store: Store,
    /// The API's URL, with the base path.
    pub url: String,
    pub sql: Client,
}

impl Service {
    pub async fn start() -> Service {
        Service::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Service {
        Service::start_with_receivers(change, StandIn { guard: None }).await
    }

    /// With the real guard instead of the stand-in.
    pub async fn start_guarded(guard: Guard) -> Service {
        Service::start_with_receivers(|_| {}, StandIn { guard: Some(guard) }).await
    }

    async fn start_with_receivers(change: impl FnOnce(&mut Config), receivers: StandIn) -> Service {
        let app = TestApp::prepare().await;
        migrate::migrate(&app.store_url).await.unwrap();

        let mut config = Config::default();
        change(&mut config);

        let store = Store::open(&app.store_url, CONNECTIONS).unwrap();
        let url = format!(
            "{}{}",
            serve(router(state_with(&config, store.clone(), receivers))).await,
            config.http.base_path
        );
        let sql = app.store().await;

        Service {
            app,
            store,
            url,
            sql,
        }
    }

    /// Returns a client with a new token of `user`.
    pub async fn api(&self, user: &str) -> Api {
        let token = tokens::create(&self.store, &UserId(user.into()), &NewToken::named("test"))
            .await
            .unwrap();
        Api::new(&self.url, token.expose_secret())
    }

    /// Waits until this many connections of the store wait for a lock.
    pub async fn wait_until_blocked(&self, connections: usize) {
        // A connection of its own: within a transaction, the view does not change.
        let sql = self.app.store().await;
        let blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        let probe = || async {
            let count: i64 = one(&sql, blocked).await;
            (count == connections as i64).then_some(())
        };

        eventually("connections that wait for a lock", probe).await;
    }

    /// The webhook's stored secret, decrypted.
    pub async fn stored_secret(&self, webhook: &str) -> String {
        let id: Uuid = webhook.parse().unwrap();
        let row = self
            .sql
            .query_one(
                "select secret, secret_key_id from walhook.webhook where id = $1",
                &[&id],
            )
            .await
            .unwrap();

        vault()
            .open_text(id, row.get(1), row.get(0))
            .unwrap()
            .expose_secret()
            .to_owned()
    }
}

/// A configuration with the stand-in for the sending side.
pub fn state(config: &Config, store: Store) -> ApiState {
    state_with(config, store, StandIn { guard: None })
}

fn state_with(config: &Config, store: Store, receivers: StandIn) -> ApiState {
    let jwt = config
        .auth
        .jwt
        .as_ref()
        .map(|jwt| JwtVerifier::new(jwt).unwrap());
    let manage = Manage::new(config, store, Arc::new(vault()), Arc::new(receivers));
    ApiState::new(config, manage, jwt)
}

/// A stand-in for the sending side. Without a guard, it blocks [`PLAIN_URL`] and [`BLOCKED_URL`]
/// only.
struct StandIn {
    guard: Option<Guard>,
}

impl Receivers for StandIn {
    fn check_url(&self, url: &str) -> Result<Url, String> {
        match &self.guard {
            Some(guard) => check_url(guard, url),
            None if url == PLAIN_URL => Err("must begin with https://".to_owned()),
            None => Url::parse(url).map_err(|error| format!("is not a URL: {error}")),
        }
    }

    fn look_up<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), UncallableHost>> {
        async move {
            match &self.guard {
                Some(guard) => look_up(guard, url).await,
                None if url == BLOCKED_URL => Err(UncallableHost::Blocked(
                    "its host is not allowed".to_owned(),
                )),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn render(&self, logged: &LogDetail) -> Option<RenderedRequest> {
        let event = logged.event_data.as_ref()?;
        let signature = logged.signature.as_ref()?;

        Some(RenderedRequest {
            headers: BTreeMap::from([
                ("X-Webhook-Id".to_owned(), logged.webhook.to_string()),
                ("X-Webhook-Signature".to_owned(), hex::encode(signature)),
            ]),
            body: format!(
                "{} {} {}",
                logged.entry.event_kind, logged.entry.attempt, event.data
            ),
        })
    }

    fn signed_with<'a>(
        &'a self,
        _: &'a LogDetail,
        _: &'a RenderedRequest,
    ) -> BoxFuture<'a, Result<Option<SigningSecret>, StoreError>> {
        std::future::ready(Ok(Some(SigningSecret::Current))).boxed()
    }

    fn send_test(&self, delivery: Delivery) -> BoxFuture<'_, anyhow::Result<(Uuid, Attempt)>> {
        async move { Ok((delivery.id, attempt(&delivery)?)) }.boxed()
    }

    fn send_unsaved_test(
        &self,
        _: Target,
        delivery: Delivery,
    ) -> BoxFuture<'_, anyhow::Result<Attempt>> {
        async move { attempt(&delivery) }.boxed()
    }
}

/// The event determines the receiver's response.
fn attempt(delivery: &Delivery) -> anyhow::Result<Attempt> {
    let answer = match delivery.kind {
        EventKind::DeliveryFailed => {
            let message = "it answered 500".to_owned();
            Answer::Failed {
                kind: ErrorKind::HttpStatus,
                message,
                status: Some(500),
            }
        }
        _ => Answer::Accepted { status: 204 },
    };

    anyhow::ensure!(
        delivery.kind != EventKind::TranscodeFailed,
        "the vault is shut"
    );
    let signatures = Signatures {
        body: [0; 32],
        standard: [0; 32],
        more: Vec::new(),
    };

    let duration = Duration::from_millis(31);
    let sent = Some(Sent {
        url: "https://a.example".into(),
        signatures,
        duration,
        timing: Default::default(),
        response_headers: Vec::new(),
        excerpt: Vec::new(),
        retry_after: None,
    });

    Ok(Attempt {
        started_at: delivery.occurred_at,
        answer,
        sent,
    })
}

pub fn vault() -> Vault {
    Vault::new(&[MASTER_KEY.to_owned().into()]).unwrap()
}

/// Serves until the test ends. Returns the origin.
pub async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}
