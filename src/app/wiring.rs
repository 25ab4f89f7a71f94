//! Functions that one stage passes to another, because stages do not use each other.

use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use crate::api::Readiness;
use crate::clock::SystemClock;
use crate::config::Config;
use crate::deliver::guard::Guard;
use crate::deliver::request::{Notification, Signer};
use crate::domain::event::delivery_id;
use crate::domain::headers::CustomHeaders;
use crate::notify::FindAddress;
use crate::notify::operator::PostOccurrence;
use crate::store::Store;
use crate::telemetry::health::Health;
use crate::telemetry::recent_disk_faults;
use crate::{deliver, lookup};

/// How long the readiness check waits for the store.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Looks up owners' e-mail addresses on the primary: owners are users of the platform.
pub fn find_address(config: Arc<Config>) -> FindAddress {
    Arc::new(move |user| {
        let config = config.clone();
        Box::pin(
            async move { Ok(lookup::email_of(config.source_url()?, &config.source, &user).await?) },
        )
    })
}

/// Sends occurrences to the operator's webhooks, signed as deliveries are. The operator chooses the
/// addresses: none is guarded.
pub fn post_occurrence(
    settings: &deliver::Settings,
    secret: &SecretString,
) -> anyhow::Result<PostOccurrence> {
    let settings = deliver::Settings {
        guard: Guard::unrestricted(),
        ..settings.clone()
    };
    let sender = deliver::Sender::new(&settings, Arc::new(SystemClock))?;
    let signer = Signer::new(secret.expose_secret());

    Ok(Arc::new(move |url, occurrence| {
        let sender = sender.clone();
        let signer = signer.clone();

        Box::pin(async move {
            let webhook = Uuid::new_v5(&Uuid::NAMESPACE_URL, url.as_bytes());
            let notification = Notification {
                delivery: delivery_id(occurrence.id, webhook),
                webhook,
                event: occurrence.id,
                kind: occurrence.kind.as_str(),
                occurred_at: occurrence.at,
                data: &occurrence.data,
                attempt: occurrence.attempt,
                sequence: None,
                test: false,
            };

            let headers = CustomHeaders::default();
            let attempt = sender.attempt_signed(&url, &headers, &signer, &notification);
            let answer = attempt.await?.answer;

            Ok(match answer.error() {
                None => Ok(()),
                Some(kind) => Err(answer.message().unwrap_or(kind.as_str()).to_owned()),
            })
        })
    }))
}

/// Returns the reasons why the process is not ready. Empty if it is ready.
pub fn readiness(store: Store, health: Health) -> Readiness {
    Arc::new(move || {
        let store = store.clone();
        let health = health.clone();

        Box::pin(async move {
            let mut reasons = health.reasons();

            // The reasons are in the server log: anybody who can reach the listener may read this
            // answer.
            let pinged = tokio::time::timeout(PING_TIMEOUT, store.ping()).await;
            if !matches!(pinged, Ok(Ok(()))) {
                reasons.push("store: it does not answer".to_owned());
            }

            reasons.extend(recent_disk_faults());
            reasons
        })
    })
}
