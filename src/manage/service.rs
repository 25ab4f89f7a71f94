//! The state that use cases share.

use std::sync::Arc;

use super::limits::{ConcurrencyLimit, RateLimit};
use super::receivers::Receivers;
use super::settings::MOST_LOOKUPS;
use super::test_delivery::{MOST_IN_FLIGHT, TEST_BURST};
use crate::config::Config;
use crate::domain::event::UserId;
use crate::store::Store;
use crate::vault::Vault;
use uuid::Uuid;

/// The use cases of a webhook's owner. Clones share the limits.
#[derive(Clone)]
pub struct Manage(Arc<Shared>);

pub struct Shared {
    pub(super) store: Store,
    pub(super) vault: Arc<Vault>,
    pub(super) receivers: Arc<dyn Receivers>,
    pub(super) webhooks_per_user: u32,
    pub(super) retention_days: u32,
    pub(super) lookups: ConcurrencyLimit<UserId>,
    pub(super) tests: ConcurrencyLimit<Uuid>,
    pub(super) test_quota: RateLimit,
}

impl std::ops::Deref for Manage {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Manage {
    pub fn new(config: &Config, store: Store, vault: Arc<Vault>, receivers: Arc<dyn Receivers>) -> Manage {
        Manage(Arc::new(Shared {
            store,
            vault,
            receivers,
            webhooks_per_user: config.limits.webhooks_per_user,
            retention_days: config.retention.days,
            lookups: ConcurrencyLimit::new(MOST_LOOKUPS),
            tests: ConcurrencyLimit::new(MOST_IN_FLIGHT),
            test_quota: RateLimit::one_per_minute(TEST_BURST),
        }))
    }
}
