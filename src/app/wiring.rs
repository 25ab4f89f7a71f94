//! Adapters between stages that do not know each other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use uuid::Uuid;

use crate::api::{
    Readiness, RenderRequest, RenderedRequest, SendTest, TestDelivery, TestResult, Unreachable, UrlCheck,
};
use crate::config::Config;
use crate::deliver::guard::{self, Guard};
use crate::deliver::request::{self, Notification};
use crate::deliver::resolver::{Resolver, Sources};
use crate::deliver::{Sender, Settings};
use crate::domain::delivery::{Attempt, Attempted, Delivery, Lease, Signatures};
use crate::domain::webhook::Target;
use crate::health::Health;
use crate::lookup;
use crate::notify::FindAddress;
use crate::record;
use crate::store::Store;
use crate::traces::Tracer;
use crate::vault::Vault;

/// How long the readiness check waits for the store.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Names that the API looks up at a time. Separate from the budget of deliveries, so that saving many webhooks delays no delivery.
const API_LOOKUPS: usize = 16;
/// What a lookup may take is half of this.
const API_TIMEOUT: Duration = Duration::from_secs(10);

/// A guard with the configuration of the one that stands at every connection.
pub fn api_guard(guard: &Guard) -> Guard {
    let resolver = Resolver::new(Sources::default(), API_LOOKUPS, API_TIMEOUT);
    guard.clone().with_lookup(resolver.into_lookup())
}

/// A receiver's address is checked when it is saved as it is at every connection.
pub fn url_check(guard: Guard) -> UrlCheck {
    let form = guard.clone();
    UrlCheck {
        form: Arc::new(move |url| {
            let url = form.check_url(url).map_err(|problem| problem.to_string())?;
            form.check_literal(&url).map_err(|problem| problem.to_string())
        }),
        lookup: Arc::new(move |url| {
            let guard = guard.clone();
            Box::pin(async move {
                let refused = |problem: &dyn std::fmt::Display| Unreachable::Refused(problem.to_string());
                let url = guard.check_url(&url).map_err(|problem| refused(&problem))?;
                guard.check_reachable(&url).await.map_err(|problem| match problem {
                    guard::Unreachable::Blocked(_) => refused(&problem),
                    // What exactly is wrong with our nameservers is not for everybody to read.
                    guard::Unreachable::Fault(_) => {
                        Unreachable::Unresolved("the host's name could not be looked up at the moment".to_owned())
                    }
                    problem => Unreachable::Unresolved(problem.to_string()),
                })
            })
        }),
    }
}

pub fn render(settings: &Settings) -> RenderRequest {
    let user_agent = settings.user_agent.clone();
    Arc::new(move |sent| {
        let notification = Notification {
            delivery: sent.delivery,
            webhook: sent.webhook,
            event: sent.event,
            kind: sent.kind,
            occurred_at: sent.occurred_at,
            data: &sent.data,
            attempt: sent.attempt,
            test: sent.test,
        };
        let digest = |bytes: &[u8]| bytes.try_into().unwrap_or_default();
        let signatures = Signatures { body: digest(&sent.signature), standard: digest(&sent.standard_signature) };
        let request = request::replay(&notification, sent.started_at, signatures, &user_agent);
        RenderedRequest {
            headers: request.headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            body: String::from_utf8_lossy(&request.body).into_owned(),
        }
    })
}

pub fn send_test(store: Store, vault: Arc<Vault>, sender: Sender, tracer: Tracer) -> SendTest {
    Arc::new(move |test| {
        let (store, vault, sender, tracer) = (store.clone(), vault.clone(), sender.clone(), tracer.clone());
        Box::pin(async move {
            let attempted = test_once(&store, &vault, &sender, &test).await?;
            let log = record::record_test(&store, &tracer, &attempted).await?;
            Ok(test_result(log, attempted.attempt))
        })
    })
}

async fn test_once(store: &Store, vault: &Vault, sender: &Sender, test: &TestDelivery) -> anyhow::Result<Attempted> {
    let found = store.targets(&[test.webhook]).await?.pop().context("the webhook was deleted meanwhile")?;
    let secret = vault.open_text(found.webhook, &found.secret_key_id, &found.secret)?;
    let target = Target { webhook: found.webhook, url: found.url.into(), active: found.active, secret };
    let delivery = Delivery {
        id: test.delivery,
        webhook: test.webhook,
        event: test.event,
        kind: test.kind,
        occurred_at: test.occurred_at,
        data: test.data.as_str().into(),
        round: 1,
        attempt: 1,
        // It is in no table that anybody could claim it from.
        lease: Lease { token: Uuid::nil(), until: Instant::now() },
    };
    let attempt = sender.attempt(&target, &Notification { test: true, ..(&delivery).into() }).await?;
    Ok(Attempted { delivery, attempt })
}

fn test_result(log: Uuid, attempt: Attempt) -> TestResult {
    let Attempt { answer, sent, .. } = attempt;
    let duration = sent.map(|sent| sent.duration);
    let response_status = answer.status();
    let error = answer.error().map(|kind| (kind, answer.message().unwrap_or_default().to_owned()));
    TestResult { log, response_status, duration, error }
}

/// Finds owners' e-mail addresses on the primary: they are users of the platform.
pub fn find_address(config: Arc<Config>) -> FindAddress {
    Arc::new(move |user| {
        let config = config.clone();
        Box::pin(async move { Ok(lookup::email_of(config.source_url()?, &config.source, &user).await?) })
    })
}

/// Reports why the process is not ready; nothing when it is.
pub fn readiness(store: Store, health: Health) -> Readiness {
    Arc::new(move || {
        let (store, health) = (store.clone(), health.clone());
        Box::pin(async move {
            let mut reasons = health.reasons();
            // The reasons are in the server log: anybody who can reach the listener may read this answer.
            let pinged = tokio::time::timeout(PING_TIMEOUT, store.ping()).await;
            if !matches!(pinged, Ok(Ok(()))) {
                reasons.push("store: it does not answer".to_owned());
            }
            reasons
        })
    })
}
