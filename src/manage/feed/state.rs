//! The state that the use cases of the feed share.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::follow::Followers;
use crate::config::Config;
use crate::store::Store;

/// Reads of the feed in progress. Half of the connections that requests share: when an event wakes
/// many clients at once, the other half serves the rest of the API.
const MOST_READS: usize = 4;

/// The state of the feed.
pub struct Feed {
    pub(super) followers: Arc<Followers>,
    pub(super) reads: Semaphore,
}

impl Feed {
    pub fn new(config: &Config, store: Store) -> Feed {
        let of_user = usize::try_from(config.limits.streams_per_user).unwrap_or(usize::MAX);
        Feed {
            followers: Followers::new(store, of_user, config.http.max_streams),
            reads: Semaphore::new(MOST_READS),
        }
    }
}
