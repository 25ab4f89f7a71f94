//! What the requests of a listener may occupy, all together and each user's: requests in progress,
//! and bytes of long responses that clients have not taken yet. Requests that are not authenticated
//! share as many requests in progress as one user has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::problem::Problem;
use crate::domain::event::UserId;

/// How long a request waits while as many as allowed are in progress.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The bytes of all long responses that clients have not taken.
const UNSENT: usize = 32 << 20;
/// One share has this part of the listener's requests.
const REQUEST_SHARES: usize = 4;
/// One share has this part of the bytes.
const UNSENT_SHARES: usize = 8;
/// With fewer, a user with one slow request could send no other.
const LEAST_REQUESTS: usize = 2;
/// Shares that nobody uses are removed when there are more than this.
const IDLE_SHARES: usize = 1_024;

/// The budget of one listener.
pub struct Budget {
    requests: Arc<Semaphore>,
    unsent: Arc<Semaphore>,
    requests_per_share: usize,
    /// By user; none is the share of requests that are not authenticated.
    shares: Mutex<HashMap<Option<UserId>, Arc<Share>>>,
}

/// What one user may occupy.
pub struct Share {
    requests: Arc<Semaphore>,
    unsent: Arc<Semaphore>,
    pub is_anonymous: bool,
}

/// A request in progress.
pub struct InProgress {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

/// The bytes of a response, until its client has taken them.
pub struct Unsent {
    /// The share that they are counted for.
    pub share: Arc<Share>,
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Budget {
    pub fn new(requests: usize) -> Budget {
        Budget {
            requests: Arc::new(Semaphore::new(requests)),
            unsent: Arc::new(Semaphore::new(UNSENT)),
            requests_per_share: (requests / REQUEST_SHARES).max(LEAST_REQUESTS),
            shares: Mutex::default(),
        }
    }

    pub fn share(&self, user: Option<&UserId>) -> Arc<Share> {
        let mut shares = self.shares.lock();
        if shares.len() > IDLE_SHARES {
            shares.retain(|_, share| Arc::strong_count(share) > 1);
        }

        let new = || {
            Arc::new(Share {
                requests: Arc::new(Semaphore::new(self.requests_per_share)),
                unsent: Arc::new(Semaphore::new(UNSENT / UNSENT_SHARES)),
                is_anonymous: user.is_none(),
            })
        };

        shares.entry(user.cloned()).or_insert_with(new).clone()
    }

    /// Waits until one more request may be in progress. First for its share: a request that waits
    /// for that delays nobody else.
    pub async fn admit(&self, share: &Share) -> Result<InProgress, Problem> {
        let Ok(Ok(own)) = timeout(PATIENCE, share.requests.clone().acquire_owned()).await else {
            return Err(share.refusal());
        };

        let Ok(Ok(all)) = timeout(PATIENCE, self.requests.clone().acquire_owned()).await else {
            return Err(Problem::overloaded());
        };

        Ok(InProgress {
            _own: own,
            _all: all,
        })
    }

    /// Reserves the bytes of a response, of which one may have the whole share. The error is what
    /// has too few: the share, or all together.
    pub fn reserve(&self, share: &Arc<Share>, bytes: u64) -> Result<Unsent, Exhausted> {
        let bytes = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min((UNSENT / UNSENT_SHARES) as u32);
        let own = share
            .unsent
            .clone()
            .try_acquire_many_owned(bytes)
            .map_err(|_| Exhausted::Share)?;
        let all = self
            .unsent
            .clone()
            .try_acquire_many_owned(bytes)
            .map_err(|_| Exhausted::All)?;

        Ok(Unsent {
            share: share.clone(),
            _own: own,
            _all: all,
        })
    }
}

/// Which bytes are reserved already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    Share,
    All,
}

impl Share {
    /// The response to a request for which the share has nothing left.
    pub fn refusal(&self) -> Problem {
        if self.is_anonymous {
            Problem::overloaded()
        } else {
            Problem::share_exhausted()
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn user(id: &str) -> UserId {
        UserId(id.into())
    }

    #[tokio::test]
    async fn a_user_who_occupies_a_whole_share_delays_nobody_else() {
        let budget = Budget::new(8);
        let greedy = budget.share(Some(&user("1")));
        let held = [
            budget.admit(&greedy).await.unwrap(),
            budget.admit(&greedy).await.unwrap(),
        ];

        assert!(
            budget
                .admit(&budget.share(Some(&user("1"))))
                .now_or_never()
                .is_none(),
            "waits"
        );

        assert!(budget.admit(&budget.share(Some(&user("2")))).await.is_ok());
        assert!(budget.admit(&budget.share(None)).await.is_ok());
        drop(held);
        assert!(budget.admit(&greedy).await.is_ok());
    }

    #[test]
    fn unsent_bytes_are_limited_per_share_and_in_total() {
        let budget = Budget::new(8);
        let whole = (UNSENT / UNSENT_SHARES) as u64;
        let greedy = budget.share(Some(&user("1")));
        let held = budget.reserve(&greedy, u64::MAX).ok().unwrap();

        assert_eq!(budget.reserve(&greedy, 1).err(), Some(Exhausted::Share));
        let others = (2..=UNSENT_SHARES).map(|id| {
            budget
                .reserve(&budget.share(Some(&user(&id.to_string()))), whole)
                .ok()
                .unwrap()
        });

        let others: Vec<Unsent> = others.collect();
        assert_eq!(
            budget.reserve(&budget.share(None), 1).err(),
            Some(Exhausted::All)
        );
        drop(held);
        assert!(budget.reserve(&budget.share(None), whole).is_ok());
        drop(others);
    }

    #[test]
    fn shares_that_nobody_uses_are_removed() {
        let budget = Budget::new(8);
        let kept = budget.share(None);

        for id in 0..=2 * IDLE_SHARES {
            budget.share(Some(&user(&id.to_string())));
        }

        assert!(budget.shares.lock().len() <= IDLE_SHARES + 2);
        assert!(Arc::ptr_eq(&kept, &budget.share(None)));
    }
}
