//! The state that use cases share.

use std::num::NonZeroU32;
use std::sync::Arc;

use uuid::Uuid;

use super::feed::state::Feed;
use super::limits::{ConcurrencyLimit, RateLimit};
use super::receivers::Receivers;
use super::searches::Searches;
use crate::config::Config;
use crate::domain::disablement::Policy;
use crate::domain::event::UserId;
use crate::events::Catalogue;
use crate::store::Store;
use crate::vault::Vault;

/// Concurrent DNS lookups of one user. Names whose nameservers do not answer take seconds each, and
/// all users share one budget.
const MAX_LOOKUPS: usize = 2;
/// Tests of one webhook in flight: a receiver that does not respond occupies no more connections.
const MAX_TESTS_IN_FLIGHT: usize = 4;
/// Tests that one user may send at once; then one a minute. Each is stored for the retention
/// period.
const TEST_BURST: NonZeroU32 = NonZeroU32::new(100).expect("not zero");

/// The use cases of webhooks' owners. Clones share the limits.
#[derive(Clone)]
pub struct Manage(Arc<ManageState>);

/// The state behind [`Manage`].
pub struct ManageState {
    pub(super) store: Store,
    pub(super) vault: Arc<Vault>,
    pub(super) receivers: Arc<dyn Receivers>,
    pub(super) webhooks_per_user: u32,
    pub(super) retention_days: u32,
    pub(super) disablement: Policy,
    pub(super) lookups: ConcurrencyLimit<UserId>,
    /// By user and webhook, which is None for tests before a webhook is saved.
    pub(super) tests: ConcurrencyLimit<(UserId, Option<Uuid>)>,
    pub(super) test_quota: RateLimit<UserId>,
    pub(super) searches: Searches,
    pub(super) feed: Feed,
    pub(super) catalogue: Catalogue,
}

impl std::ops::Deref for Manage {
    type Target = ManageState;

    fn deref(&self) -> &ManageState {
        &self.0
    }
}

impl Manage {
    pub fn new(
        config: &Config,
        store: Store,
        vault: Arc<Vault>,
        receivers: Arc<dyn Receivers>,
    ) -> Manage {
        let tables = &config.source.tables;
        let keys = |table| tables.extra(table).keys().cloned().collect();
        let catalogue = Catalogue::new(keys, |table| tables.is_absent(table));

        Manage(Arc::new(ManageState {
            feed: Feed::new(config, store.clone()),
            store,
            vault,
            receivers,
            webhooks_per_user: config.limits.webhooks_per_user,
            retention_days: config.retention.days,
            disablement: config.disable.policy(),
            lookups: ConcurrencyLimit::new(MAX_LOOKUPS),
            tests: ConcurrencyLimit::new(MAX_TESTS_IN_FLIGHT),
            test_quota: RateLimit::per_minute(NonZeroU32::MIN, TEST_BURST),
            searches: Searches::new(),
            catalogue,
        }))
    }

    /// When a failing webhook is disabled.
    pub fn disablement(&self) -> &Policy {
        &self.disablement
    }

    /// The events that webhooks can subscribe to.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }
}
