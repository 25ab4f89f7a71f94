//! Functions that one stage passes to another, because stages do not use each other.

use std::sync::Arc;
use std::time::Duration;

use crate::api::Readiness;
use crate::config::Config;
use crate::lookup;
use crate::notify::FindAddress;
use crate::store::Store;
use crate::telemetry::health::Health;
use crate::telemetry::recent_disk_faults;

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
