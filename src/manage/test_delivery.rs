//! Tests: one attempt with example data at the owner's request, also before a webhook is saved.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use tracing::Instrument;
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::limits::OperationPermit;
use super::service::Manage;
use crate::domain::delivery::{Attempt, Delivery, ErrorKind, Lease};
use crate::domain::event::{EventKind, UserId, delivery_id};
use crate::domain::headers::CustomHeaders;
use crate::domain::settings::TestDraft;
use crate::domain::webhook::Target;
use crate::store::StoreError;
use crate::store::audit::Actor;
use crate::store::logs;
use crate::telemetry::recurring;
use crate::vault::new_webhook_secret;

/// The result of a test.
#[derive(Clone, Debug)]
pub struct TestReport {
    pub response_status: Option<u16>,
    /// None if nothing was sent.
    pub duration: Option<Duration>,
    /// None if the test was delivered.
    pub error: Option<(ErrorKind, String)>,
}

impl From<&Attempt> for TestReport {
    fn from(attempt: &Attempt) -> TestReport {
        let answer = &attempt.answer;
        let message = || answer.message().unwrap_or_default().to_owned();

        TestReport {
            response_status: answer.status(),
            duration: attempt.sent.as_ref().map(|sent| sent.duration),
            error: answer.error().map(|kind| (kind, message())),
        }
    }
}

impl TestReport {
    pub fn is_delivered(&self) -> bool {
        self.error.is_none()
    }
}

/// A test of a webhook, with its entry of the delivery log.
#[derive(Clone, Debug)]
pub struct LoggedTest {
    pub report: TestReport,
    pub log_id: Uuid,
}

impl Manage {
    /// Sends `event`, or the first subscribed event, and waits for the response.
    pub async fn send_test(
        &self,
        actor: &Actor,
        webhook: Uuid,
        event: Option<EventKind>,
    ) -> Result<LoggedTest> {
        let settings = self.webhook(&actor.user, webhook).await?.settings;
        let first = || settings.events.iter().find_map(|event| event.parse().ok());
        let kind = event.or_else(first).ok_or(Fault::Internal)?;
        let permit = self.begin_test(&actor.user, Some(webhook))?;

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

    /// Sends an example event to the receiver that `json` names, and waits for the response. Nothing
    /// is stored. The request is signed with a secret that is used only once: a receiver that
    /// verifies signatures rejects it.
    pub async fn test_receiver(&self, actor: &Actor, json: &[u8]) -> Result<TestReport> {
        let check_url = |url: &str| self.receivers.check_url(url).map(String::from);
        let draft = TestDraft::read(json, &check_url).map_err(Fault::InvalidSettings)?;
        let headers = draft.headers.resolve(&CustomHeaders::default());
        let headers = headers.map_err(|errors| {
            let errors = errors.into_iter().map(|error| error.below("headers"));
            Fault::InvalidSettings(errors.collect())
        })?;
        let permit = self.begin_test(&actor.user, None)?;

        let webhook = Uuid::now_v7();
        let kind = draft.event.unwrap_or(EventKind::ALL[0]);
        let delivery = self.test_of(webhook, Uuid::now_v7(), kind);
        let target = Target {
            webhook,
            url: draft.url.into(),
            active: true,
            secret: new_webhook_secret(),
            headers,
        };

        // A task of its own: a client that disconnects does not end the request to the receiver.
        let manage = self.clone();
        let test = async move {
            let _permit = permit;
            manage.receivers.send_unsaved_test(target, delivery).await
        };

        let task = tokio::spawn(test.in_current_span());
        let sent = task.await.map_err(|_| Fault::Internal)?;
        let attempt = sent.map_err(|error| {
            recurring!(
                error,
                error = format!("{error:#}"),
                "tests before saving cannot be sent"
            );
            Fault::Internal
        })?;

        tracing::info!(user = %actor.user, "receiver tested before its webhook is saved");
        Ok(TestReport::from(&attempt))
    }

    /// Counts a test, which lasts until the permit is dropped. All tests of a user share one budget.
    fn begin_test(
        &self,
        user: &UserId,
        webhook: Option<Uuid>,
    ) -> Result<OperationPermit<(UserId, Option<Uuid>)>> {
        let what = "many tests were sent in the last hours";
        let refused = |seconds| Fault::RateLimit { what, seconds };

        self.test_quota.check(user).map_err(refused)?;
        let permit = self.tests.acquire(&(user.clone(), webhook));
        permit.ok_or(Fault::TooManyTests)
    }

    /// Returns a delivery of the event type's example, which is only sent once.
    fn test_of(&self, webhook: Uuid, event: Uuid, kind: EventKind) -> Delivery {
        Delivery {
            id: delivery_id(event, webhook),
            webhook,
            event,
            kind,
            occurred_at: Timestamp::now(),
            data: self.catalogue.get(kind).example.clone().into(),
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
                place: None,
            },
        }
    }

    async fn attempt_test(
        &self,
        actor: &Actor,
        webhook: Uuid,
        kind: EventKind,
    ) -> Result<LoggedTest> {
        let event = Uuid::now_v7();
        let delivery = self.test_of(webhook, event, kind);
        let (at, data) = (delivery.occurred_at, &delivery.data);

        logs::insert_test_event(&self.store, actor, webhook, event, kind, at, data).await?;

        let sent = self.receivers.send_test(delivery).await;
        let (log_id, attempt) = sent.map_err(|error| match error.downcast::<StoreError>() {
            Ok(error) => Fault::Store(error),
            Err(error) => {
                recurring!(error, %webhook, error = format!("{error:#}"), "tests cannot be sent");
                Fault::Internal
            }
        })?;

        Ok(LoggedTest {
            report: TestReport::from(&attempt),
            log_id,
        })
    }
}
