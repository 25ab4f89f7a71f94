//! The demo's receiver: verifies every delivery as `walhook receive` does, and reports it to the
//! screen.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::sync::mpsc;

use super::platform::below;
use crate::cli::receive::{Verifier, WeakSecret, text};

const TOLERANCE: Duration = Duration::from_secs(300);
/// The flaky receiver rejects the first attempt of one in this many deliveries.
const FLAKY: usize = 25;
/// Capacity of the channel to the screen.
const BACKLOG: usize = 1_024;

/// A received delivery.
#[derive(Debug)]
pub struct ReceivedDelivery {
    pub event: String,
    pub id: String,
    pub attempt: u32,
    pub outcome: ReceivedOutcome,
}

#[derive(Debug, PartialEq, Eq)]
pub enum ReceivedOutcome {
    Verified,
    /// Genuine, but rejected so that it is retried.
    RejectedOnPurpose,
    Unverified(String),
}

struct WebhookKeys {
    verifier: Verifier,
    flaky: bool,
}

#[derive(Clone)]
pub struct Receiver {
    pub url: String,
    shared: Arc<ReceiverState>,
}

struct ReceiverState {
    webhooks: RwLock<HashMap<String, WebhookKeys>>,
    deliveries: mpsc::Sender<ReceivedDelivery>,
}

impl Receiver {
    /// Listens on loopback until the process ends.
    pub async fn start() -> anyhow::Result<(Receiver, mpsc::Receiver<ReceivedDelivery>)> {
        let (deliveries, incoming) = mpsc::channel(BACKLOG);
        let shared = Arc::new(ReceiverState {
            webhooks: RwLock::default(),
            deliveries,
        });

        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let url = format!("http://{}", listener.local_addr()?);
        let router = Router::new().fallback(receive).with_state(shared.clone());

        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok((Receiver { url, shared }, incoming))
    }

    /// Accepts deliveries of this webhook from now on.
    pub fn expect(&self, webhook: &str, secret: String, flaky: bool) -> Result<(), WeakSecret> {
        let verifier = Verifier::new(secret.into(), TOLERANCE)?;
        let mut webhooks = self.shared.webhooks.write();
        webhooks.insert(webhook.to_owned(), WebhookKeys { verifier, flaky });

        Ok(())
    }
}

impl ReceiverState {
    fn verify(&self, headers: &HeaderMap, body: &[u8], attempt: u32) -> ReceivedOutcome {
        let webhooks = self.webhooks.read();
        let id = text(headers, "x-webhook-id").unwrap_or_default();
        let Some(webhook) = webhooks.get(id) else {
            return ReceivedOutcome::Unverified("not for a webhook of the demo".to_owned());
        };

        match webhook.verifier.verify(headers, body, Timestamp::now()) {
            Err(reason) => ReceivedOutcome::Unverified(reason.to_string()),
            Ok(()) if webhook.flaky && attempt == 1 && below(FLAKY) == 0 => {
                ReceivedOutcome::RejectedOnPurpose
            }
            Ok(()) => ReceivedOutcome::Verified,
        }
    }
}

async fn receive(
    State(shared): State<Arc<ReceiverState>>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let header = |name| text(&headers, name).unwrap_or_default();
    let attempt = header("x-webhook-attempt").parse().unwrap_or(1);
    let outcome = shared.verify(&headers, &body, attempt);
    let status = match outcome {
        ReceivedOutcome::Verified => StatusCode::OK,
        ReceivedOutcome::RejectedOnPurpose => StatusCode::SERVICE_UNAVAILABLE,
        ReceivedOutcome::Unverified(_) => StatusCode::UNAUTHORIZED,
    };

    let event = header("x-webhook-event").to_owned();
    let id = header("x-webhook-delivery").to_owned();

    // Fails when the demo is ending.
    let _ = shared
        .deliveries
        .send(ReceivedDelivery {
            event,
            id,
            attempt,
            outcome,
        })
        .await;

    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::receive::Rejection;
    use hmac::{Hmac, KeyInit, Mac};

    const S1: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    const S2: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

    fn headers(webhook: &str, secret: &str, body: &str) -> HeaderMap {
        let mac = Hmac::<sha2::Sha256>::new_from_slice(secret.as_bytes()).unwrap();
        let signature = hex::encode(mac.chain_update(body).finalize().into_bytes());
        let mut headers = HeaderMap::new();

        headers.insert("x-webhook-id", webhook.parse().unwrap());
        headers.insert("x-webhook-signature", signature.parse().unwrap());
        headers.insert(
            "x-webhook-timestamp",
            Timestamp::now().to_string().parse().unwrap(),
        );

        headers
    }

    #[tokio::test]
    async fn only_deliveries_signed_with_the_webhooks_secret_are_verified() {
        let (receiver, _deliveries) = Receiver::start().await.unwrap();
        receiver.expect("1", S1.into(), false).unwrap();
        receiver.expect("2", S2.into(), false).unwrap();

        let verify = |webhook, secret| {
            receiver
                .shared
                .verify(&headers(webhook, secret, "{}"), b"{}", 1)
        };

        assert_eq!(verify("1", S1), ReceivedOutcome::Verified);
        assert_eq!(
            verify("1", S2),
            ReceivedOutcome::Unverified(Rejection::WrongSignature.to_string())
        );
        assert!(matches!(verify("3", S1), ReceivedOutcome::Unverified(_)));
    }

    #[tokio::test]
    async fn a_flaky_receiver_rejects_only_first_attempts() {
        let (receiver, _deliveries) = Receiver::start().await.unwrap();
        receiver.expect("1", S1.into(), true).unwrap();

        let verify = |attempt| {
            receiver
                .shared
                .verify(&headers("1", S1, "{}"), b"{}", attempt)
        };

        let rejected = (0..1_000)
            .filter(|_| verify(1) == ReceivedOutcome::RejectedOnPurpose)
            .count();
        assert!((1..1_000).contains(&rejected), "{rejected}");
        assert!((0..1_000).all(|_| verify(2) == ReceivedOutcome::Verified));
    }
}
