//! The harness of the black-box tests: a real Postgres, the real binary, and a receiver that
//! records its requests.
//!
//! `TestApp::start()` returns a running sidecar that is ready. `TestApp::prepare()` stops before
//! `setup`, for tests that change settings or the database first.

#![allow(
    dead_code,
    reason = "every test binary compiles this for itself and uses a part"
)]
#![allow(unused_imports, reason = "as above")]

pub mod account;
mod api;
mod app;
mod backlog;
pub mod collector;
mod hostile;
mod jwt;
mod namespace;
pub mod plan;
mod platform;
pub mod proxy;
pub mod random;
mod receiver;
mod sidecar;
mod smtp;
pub mod sse;
mod stages;
mod tls;
mod tools;
mod tunnel;
pub mod versions;

pub use api::{Answer as ApiAnswer, Api, get as fetch};
pub use app::{REFERENCE_SCHEMA, TestApp, server, standby, wal_end};
pub use backlog::full_listener;
pub use hostile::{Hostile, Misdeed};
pub use jwt::{Issuer, base64_url, hs256_token, hs256_token_with};
pub use namespace::{NETWORK, Namespace};
pub use platform::{Platform, next_id};
pub use receiver::{Answer, Received, Receiver, signature};
pub use sidecar::Sidecar;
pub use smtp::SmtpSink;
pub use stages::{Bench, DATA, attempt, sent};
pub use tls::{Authority, serve as serve_tls};
pub use tools::{are_installed, run_program, skip};
pub use tunnel::TunnelProxy;

use std::time::Duration;

use postgres_types::FromSqlOwned;
use tokio_postgres::Client;

/// How long a test waits for anything. Generous, for slow and busy machines, because it only ends
/// hanging tests.
pub const DEADLINE: Duration = Duration::from_secs(180);
/// Interval of polling.
pub const POLL: Duration = Duration::from_millis(20);

/// Returns the content of `/metrics`.
pub async fn metrics(metrics_url: &str) -> String {
    api::get(&format!("{metrics_url}/metrics"))
        .await
        .expect("metrics")
        .1
}

/// Executes statements that must succeed.
pub async fn run_sql(client: &Client, statements: &str) {
    let result = client.batch_execute(statements).await;
    result.unwrap_or_else(|error| panic!("{statements}: {}", walhook::postgres::describe(&error)));
}

/// Inserts a disabled webhook for each of the users, and the notice to its owner.
pub async fn disable_webhooks(store: &Client, users: &[&str]) {
    let insert = "with disabled as (
                      insert into walhook.webhook (id, user_id, name, url, events, secret, secret_key_id, active, disabled_at)
                      select gen_random_uuid(), who, 'n', 'u', '{payment.statement_ready}', '', '', false, now()
                      from unnest($1::text[]) who
                      returning *
                  )
                  insert into walhook.notice (id, kind, webhook_id, user_id, name, url, reason, error_kind, failures, threshold)
                  select gen_random_uuid(), 'disabled', id, user_id, name, url, 'r', 'dns', 1, 1 from disabled";
    store
        .execute(insert, &[&users])
        .await
        .expect("disabled webhooks");
}

/// Returns the only value of the only row of a query.
pub async fn one<T: FromSqlOwned>(client: &Client, query: &str) -> T {
    let row = client.query_one(query, &[]).await;
    row.unwrap_or_else(|error| panic!("{query}: {}", walhook::postgres::describe(&error)))
        .get(0)
}

/// Waits until `probe` returns a value. Panics with `what` if it takes too long.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    probe: impl FnMut() -> F,
) -> T {
    eventually_within(DEADLINE, what, probe).await
}

/// Like [`eventually`], for what takes longer.
pub async fn eventually_within<T, F: Future<Output = Option<T>>>(
    limit: Duration,
    what: &str,
    mut probe: impl FnMut() -> F,
) -> T {
    let end = tokio::time::Instant::now() + limit;

    loop {
        if let Some(found) = probe().await {
            return found;
        }

        assert!(
            tokio::time::Instant::now() < end,
            "not within {limit:?}: {what}"
        );
        tokio::time::sleep(POLL).await;
    }
}
