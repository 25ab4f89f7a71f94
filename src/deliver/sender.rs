//! Makes single attempts: renders, signs and sends one request.

use std::sync::Arc;

use jiff::Timestamp;
use secrecy::ExposeSecret;

use super::client::{Client, Endpoint, OwnFault};
use super::request::{self, Notification, Signer, TooLarge};
use super::retry_after;
use super::settings::Settings;
use crate::clock::Clock;
use crate::domain::delivery::{Answer, Attempt, Sent};
use crate::domain::headers::CustomHeaders;
use crate::domain::trace::{Sampling, SpanId};
use crate::domain::webhook::Target;

/// Makes attempts. A process has one, so that connections are shared; clones are cheap.
#[derive(Clone)]
pub struct Sender(Arc<SenderState>);

struct SenderState {
    client: Client,
    settings: Settings,
    clock: Arc<dyn Clock>,
}

impl Sender {
    pub fn new(settings: &Settings, clock: Arc<dyn Clock>) -> anyhow::Result<Sender> {
        Ok(Sender(Arc::new(SenderState {
            client: Client::new(settings)?,
            settings: settings.clone(),
            clock,
        })))
    }

    /// Makes one attempt, even if the webhook is inactive.
    pub async fn attempt(
        &self,
        target: &Target,
        notification: &Notification<'_>,
    ) -> Result<Attempt, OwnFault> {
        self.attempt_signed(
            &target.url,
            &target.headers,
            &Signer::new(target.secret.expose_secret()),
            notification,
        )
        .await
    }

    /// Makes one attempt that is signed with all keys of the webhook.
    pub async fn attempt_signed(
        &self,
        url: &str,
        headers: &CustomHeaders,
        signer: &Signer,
        notification: &Notification<'_>,
    ) -> Result<Attempt, OwnFault> {
        let endpoint = Endpoint::new(url, &self.0.settings.guard).with_headers(headers);
        self.send(&endpoint, signer, notification).await
    }

    /// Makes one attempt at an endpoint that has been checked.
    pub(super) async fn send(
        &self,
        endpoint: &Endpoint,
        signer: &Signer,
        notification: &Notification<'_>,
    ) -> Result<Attempt, OwnFault> {
        let SenderState {
            client,
            settings,
            clock,
        } = &*self.0;
        let started_at = self.now();

        let rendered = request::render(
            notification,
            started_at,
            signer,
            &settings.user_agent,
            settings.max_payload_bytes,
        );

        let mut request = match rendered {
            Ok(request) => request,
            Err(TooLarge { bytes }) => {
                return Ok(Attempt {
                    started_at,
                    answer: Answer::TooLarge { bytes },
                    sent: None,
                });
            }
        };

        request.traceparent = settings
            .sampling
            .map(|sampling| traceparent(sampling, notification, started_at));
        let exchange = client.post(endpoint, &request).await?;
        let retry_after = exchange.retry_after.filter(|_| settings.honor_retry_after);

        let sent = Sent {
            url: endpoint.url(),
            signatures: request.signatures,
            duration: exchange.duration,
            timing: exchange.timing,
            response_headers: exchange.headers,
            excerpt: exchange.excerpt,
            retry_after: retry_after
                .and_then(|value| retry_after::parse(value.to_str().ok()?, clock.now())),
        };

        Ok(Attempt {
            started_at,
            answer: exchange.answer,
            sent: Some(sent),
        })
    }

    /// Returns the log entry of a delivery to an inactive webhook: nothing is sent.
    pub(super) fn cancelled(&self) -> Attempt {
        Attempt {
            started_at: self.now(),
            answer: Answer::Inactive,
            sent: None,
        }
    }

    /// The time in milliseconds, the precision of `X-Webhook-Timestamp`.
    fn now(&self) -> Timestamp {
        let now = self.0.clock.now();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }
}

fn traceparent(sampling: Sampling, notification: &Notification<'_>, at: Timestamp) -> String {
    let span = SpanId::of_attempt(notification.delivery, notification.attempt, at);
    sampling.traceparent(notification.event, span)
}
