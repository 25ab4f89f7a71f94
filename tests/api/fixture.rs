//! The API alone, on a port of its own, with a migrated store and a stand-in for what other parts do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::FutureExt;
use secrecy::ExposeSecret;
use tokio::net::TcpListener;
use tokio_postgres::Client;
use uuid::Uuid;
use walhook::api::{
    ApiState, JwtVerifier, RenderRequest, RenderedRequest, SendTest, TestResult, Unreachable, UrlCheck, router,
};
use walhook::config::Config;
use walhook::domain::delivery::ErrorKind;
use walhook::domain::event::{EventKind, UserId};
use walhook::store::{Store, migrate, tokens};
use walhook::vault::Vault;

use crate::support::{Api, TestApp, eventually};

pub const BASE: &str = "/api/public";
/// How many requests can be at the store at once.
pub const CONNECTIONS: usize = 8;
/// What the stand-in for the guard refuses by its looks.
pub const PLAIN_URL: &str = "http://receiver.example/in";
/// A host that it refuses when it has looked it up.
pub const BLOCKED_URL: &str = "https://blocked.example/in";
const MASTER_KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

pub struct Service {
    pub app: TestApp,
    pub store: Store,
    /// With the base path.
    pub url: String,
    pub sql: Client,
}

impl Service {
    pub async fn start() -> Service {
        Service::start_with(|_| {}).await
    }

    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Service {
        Service::start_guarded(change, stand_in_guard()).await
    }

    pub async fn start_guarded(change: impl FnOnce(&mut Config), url_check: UrlCheck) -> Service {
        let app = TestApp::prepare().await;
        migrate::migrate(&app.store_url).await.unwrap();
        let mut config = Config::default();
        change(&mut config);
        let store = Store::open(&app.store_url, CONNECTIONS).unwrap();
        let url = format!(
            "{}{}",
            serve(router(guarded_state(&config, store.clone(), url_check))).await,
            config.http.base_path
        );
        let sql = app.store().await;
        Service { app, store, url, sql }
    }

    /// A client with a new token of `user`.
    pub async fn api(&self, user: &str) -> Api {
        let token = tokens::create(&self.store, &UserId(user.into()), "test").await.unwrap();
        Api::new(&self.url, token.expose_secret())
    }

    /// Waits until so many of the store's connections wait for a lock.
    pub async fn wait_until_blocked(&self, connections: usize) {
        // A connection of its own: inside a transaction the view would stand still.
        let sql = self.app.store().await;
        let blocked =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        let probe = || async {
            let count: i64 = sql.query_one(blocked, &[]).await.unwrap().get(0);
            (count == connections as i64).then_some(())
        };
        eventually("connections that wait for a lock", probe).await;
    }

    /// The webhook's secret as the store has it, decrypted.
    pub async fn stored_secret(&self, webhook: &str) -> String {
        let id: Uuid = webhook.parse().unwrap();
        let row = self
            .sql
            .query_one("select secret, secret_key_id from walhook.webhook where id = $1", &[&id])
            .await
            .unwrap();
        vault().open_text(id, row.get(1), row.get(0)).unwrap().expose_secret().to_owned()
    }
}

fn stand_in_guard() -> UrlCheck {
    UrlCheck {
        form: Arc::new(|url| if url == PLAIN_URL { Err("must begin with https://".to_owned()) } else { Ok(()) }),
        lookup: Arc::new(|url| {
            let refused = url == BLOCKED_URL;
            let reason = || Unreachable::Refused("its host is not allowed".to_owned());
            async move { if refused { Err(reason()) } else { Ok(()) } }.boxed()
        }),
    }
}

pub fn state(config: &Config, store: Store) -> ApiState {
    guarded_state(config, store, stand_in_guard())
}

fn guarded_state(config: &Config, store: Store, url_check: UrlCheck) -> ApiState {
    let render: RenderRequest = Arc::new(|sent| RenderedRequest {
        headers: BTreeMap::from([
            ("X-Webhook-Id".to_owned(), sent.webhook.to_string()),
            ("X-Webhook-Signature".to_owned(), hex::encode(&sent.signature)),
        ]),
        body: format!("{} {} {}", sent.kind, sent.attempt, sent.data),
    });
    let jwt = config.auth.jwt.as_ref().map(|jwt| JwtVerifier::new(jwt).unwrap());
    ApiState::new(config, store, Arc::new(vault()), url_check, render, send_test()).with_jwt(jwt)
}

/// The event chooses what the receiver does.
fn send_test() -> SendTest {
    Arc::new(|test| {
        let error = match test.kind {
            EventKind::DeliveryFailed => Some((ErrorKind::HttpStatus, "it answered 500".to_owned())),
            _ => None,
        };
        let broken = test.kind == EventKind::TranscodeFailed;
        async move {
            anyhow::ensure!(!broken, "the vault is shut");
            let status = if error.is_some() { 500 } else { 204 };
            Ok(TestResult {
                log: test.delivery,
                response_status: Some(status),
                duration: Some(Duration::from_millis(31)),
                error,
            })
        }
        .boxed()
    })
}

fn vault() -> Vault {
    Vault::new(&[MASTER_KEY.to_owned().into()]).unwrap()
}

/// Serves until the test ends, and gives the origin.
pub async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}
