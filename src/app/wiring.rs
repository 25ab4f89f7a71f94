//! Where stages meet that do not know each other.

use std::sync::Arc;
use std::time::Duration;

use crate::api::Readiness;
use crate::config::Config;
use crate::health::Health;
use crate::lookup;
use crate::notify::FindAddress;
use crate::store::Store;

/// Who asks for readiness does not wait for ever, and wants the reasons.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Owners are users of the platform: it knows where to reach them.
pub fn find_address(config: Arc<Config>) -> FindAddress {
    Arc::new(move |user| {
        let config = config.clone();
        Box::pin(async move { Ok(lookup::email_of(config.source_url()?, &config.source, &user).await?) })
    })
}

pub fn readiness(store: Store, health: Health) -> Readiness {
    Arc::new(move || {
        let (store, health) = (store.clone(), health.clone());
        Box::pin(async move {
            let mut reasons = health.reasons();
            // What exactly is wrong is in the log; this answer may be seen by anybody who can reach the listener.
            let pinged = tokio::time::timeout(PING_TIMEOUT, store.ping()).await;
            if !matches!(pinged, Ok(Ok(()))) {
                reasons.push("store: it does not answer".to_owned());
            }
            reasons
        })
    })
}
