//! Tests: one attempt with example data at the owner's request.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tracing::Instrument;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::service::Manage;
use crate::domain::delivery::{Delivery, ErrorKind, Lease};
use crate::domain::event::{EventKind, delivery_id};
use crate::store::StoreError;
use crate::store::audit::Actor;
use crate::store::logs;
use crate::telemetry::recurring;

/// The result of a test.
#[derive(Clone, Debug)]
pub struct TestReport {
    pub response_status: Option<u16>,
    /// None if nothing was sent.
    pub duration: Option<Duration>,
    /// None if the test was delivered.
    pub error: Option<(ErrorKind, String)>,
    /// The entry of the delivery log.
    pub log_id: Uuid,
}

impl Manage {
    /// Sends `event`, or the first subscribed event, and waits for the response.
    pub async fn send_test(
        &self,
        actor: &Actor,
        webhook: Uuid,
        event: Option<EventKind>,
    ) -> Result<TestReport> {
        let settings = self.webhook(&actor.user, webhook).await?.settings;
        let first = || settings.events.iter().find_map(|event| event.parse().ok());
        let kind = event.or_else(first).ok_or(Fault::Internal)?;
        let what = "many tests were sent in the last hours";
        let refused = |seconds| Fault::RateLimit { what, seconds };

        self.test_quota.check(&actor.user).map_err(refused)?;
        let permit = self.tests.acquire(&webhook).ok_or(Fault::TooManyTests)?;

        // A task of its own: the attempt is logged even if the client disconnects.
        let manage = self.clone();
        let actor = actor.clone();
        let test = async move {
            let _permit = permit;
            manage.attempt_test(&actor, webhook, kind).await
        };

        let task = tokio::spawn(test.in_current_span());

        task.await.map_err(|_| Fault::Internal)?
    }

    async fn attempt_test(
        &self,
        actor: &Actor,
        webhook: Uuid,
        kind: EventKind,
    ) -> Result<TestReport> {
        let event = Uuid::now_v7();
        let occurred_at = Timestamp::now();
        let data = self.catalogue.get(kind).example.clone();

        logs::insert_test_event(&self.store, actor, webhook, event, kind, occurred_at, &data)
            .await?;

        let delivery = Delivery {
            id: delivery_id(event, webhook),
            webhook,
            event,
            kind,
            occurred_at,
            data: data.into(),
            round: 1,
            attempt: 1,
            sequence: None,
            order_key: None,
            activation: 0,
            // The delivery is not in the store, so no replica can claim it and the lease has no
            // meaning.
            lease: Lease {
                token: Uuid::nil(),
                until: Instant::now(),
            },
        };

        let sent = self.receivers.send_test(delivery).await;
        let (log_id, attempt) = sent.map_err(|error| match error.downcast::<StoreError>() {
            Ok(error) => Fault::Store(error),
            Err(error) => {
                recurring!(error, %webhook, error = format!("{error:#}"), "tests cannot be sent");
                Fault::Internal
            }
        })?;

        let answer = &attempt.answer;
        Ok(TestReport {
            response_status: answer.status(),
            duration: attempt.sent.as_ref().map(|sent| sent.duration),
            error: answer
                .error()
                .map(|kind| (kind, answer.message().unwrap_or_default().to_owned())),
            log_id,
        })
    }
}
