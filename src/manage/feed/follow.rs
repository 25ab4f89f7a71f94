//! Clients that wait for new events. One task per process polls the store for all of them, so that
//! a waiting client costs no query.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics::gauge;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::domain::event::UserId;
use crate::manage::limits::{ConcurrencyLimit, OperationPermit};
use crate::store::feed::{self, NewEvents};
use crate::store::{Result, Store, StoreError, access};
use crate::telemetry::{self, Activity};

/// Between two polls of the counter. A waiting client gets an event a tenth of a second later on
/// average, and five reads of one row per second cost the store nothing that can be measured.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// New events that one poll reads: those of 200 ms at 50,000 a second. After an outage, polls
/// follow each other without a pause.
const MOST_EXAMINED: i64 = 10_000;
/// Between two checks whether the tokens and sessions of the clients are still valid.
const ACCESS_INTERVAL: Duration = Duration::from_secs(15);
/// The server ends statements earlier, unless the connection is dead.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a client's right to read depends on, after it was authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Token(Uuid),
    /// A session of the web UI, by the hash of its id.
    Session([u8; 32]),
    /// Checked by the caller.
    Other,
}

/// The clients that wait.
pub struct Followers {
    store: Store,
    state: Mutex<ActiveStreams>,
    of_user: ConcurrencyLimit<UserId>,
    of_all: ConcurrencyLimit<()>,
}

#[derive(Default)]
struct ActiveStreams {
    next: u64,
    by_user: HashMap<UserId, HashMap<u64, Arc<Signal>>>,
    is_polled: bool,
}

/// What a client waits for.
struct Signal {
    access: Access,
    notify: Notify,
    is_revoked: AtomicBool,
}

/// A client that waits for its user's events, until it is dropped.
pub struct Follower {
    followers: Arc<Followers>,
    user: UserId,
    id: u64,
    signal: Arc<Signal>,
    _permits: (OperationPermit<UserId>, OperationPermit<()>),
}

impl Followers {
    pub fn new(store: Store, most_of_user: usize, most: usize) -> Arc<Followers> {
        let of_user = ConcurrencyLimit::new(most_of_user);
        let of_all = ConcurrencyLimit::new(most);
        Arc::new(Followers {
            store,
            state: Mutex::default(),
            of_user,
            of_all,
        })
    }

    /// Registers a client. Events that are committed from now on wake it; it must read the feed
    /// once after this call. None if too many clients of this user, or of all users, wait.
    pub fn follow(self: &Arc<Self>, user: &UserId, access: Access) -> Option<Follower> {
        let permits = (self.of_user.acquire(user)?, self.of_all.acquire(&())?);
        let signal = Arc::new(Signal {
            access,
            notify: Notify::new(),
            is_revoked: AtomicBool::new(false),
        });

        let mut state = self.state.lock();
        let id = state.next;

        state.next += 1;
        state
            .by_user
            .entry(user.clone())
            .or_default()
            .insert(id, signal.clone());

        if !std::mem::replace(&mut state.is_polled, true) {
            tokio::spawn(poll(self.clone()));
        }

        drop(state);
        gauge!(telemetry::FEED_STREAMS).increment(1.0);

        Some(Follower {
            followers: self.clone(),
            user: user.clone(),
            id,
            signal,
            _permits: permits,
        })
    }

    fn users(&self) -> Vec<UserId> {
        self.state.lock().by_user.keys().cloned().collect()
    }

    fn wake<'a>(&self, users: impl IntoIterator<Item = &'a UserId>) {
        let state = self.state.lock();
        let signals = users
            .into_iter()
            .filter_map(|user| state.by_user.get(user))
            .flat_map(HashMap::values);
        signals.for_each(|signal| signal.notify.notify_one());
    }

    /// Returns true, and lets the next client start another task, if no client is left.
    fn stop_if_unused(&self) -> bool {
        let mut state = self.state.lock();
        state.is_polled = !state.by_user.is_empty();
        !state.is_polled
    }

    /// Wakes the clients whose users have events after `seen`. Returns the number up to which it
    /// has looked, and whether there may be more events.
    async fn wake_for_new(&self, seen: Option<i64>) -> Result<(i64, bool)> {
        let last = feed::last_sequence(&self.store).await?;

        // After the counter: a client that follows later reads everything up to this number itself.
        let users = self.users();
        let Some(seen) = seen.filter(|seen| *seen <= last) else {
            // A client may have read the feed before this first look at the counter. Or the store
            // was restored from a backup.
            self.wake(&users);
            return Ok((last, false));
        };

        if last == seen {
            return Ok((last, false));
        }

        let names: Vec<&str> = users.iter().map(|user| &*user.0).collect();
        let NewEvents {
            users,
            last: read,
            examined,
        } = feed::users_with_events(&self.store, seen, last, MOST_EXAMINED, &names).await?;
        let users: Vec<UserId> = users.into_iter().map(|user| UserId(user.into())).collect();

        self.wake(&users);

        match read {
            Some(read) if examined == MOST_EXAMINED => Ok((read, read < last)),
            _ => Ok((last, false)),
        }
    }

    /// Ends the clients whose token or session is not valid any more: one statement for all tokens,
    /// one for all sessions.
    async fn end_revoked(&self) -> Result<()> {
        let signals: Vec<Arc<Signal>> = {
            let state = self.state.lock();
            state
                .by_user
                .values()
                .flat_map(HashMap::values)
                .cloned()
                .collect()
        };

        let mut tokens = Vec::new();
        let mut sessions = Vec::new();

        for signal in &signals {
            match &signal.access {
                Access::Token(id) => tokens.push(*id),
                Access::Session(hash) => sessions.push(&hash[..]),
                Access::Other => {}
            }
        }

        let tokens = access::valid_tokens(&self.store, &tokens).await?;
        let tokens: HashSet<Uuid> = tokens.into_iter().collect();
        let sessions = access::valid_sessions(&self.store, &sessions).await?;
        let sessions: HashSet<Vec<u8>> = sessions.into_iter().collect();

        for signal in &signals {
            let is_valid = match &signal.access {
                Access::Token(id) => tokens.contains(id),
                Access::Session(hash) => sessions.contains(&hash[..]),
                Access::Other => true,
            };

            if !is_valid {
                signal.is_revoked.store(true, Ordering::Relaxed);
                signal.notify.notify_one();
            }
        }

        Ok(())
    }
}

/// Polls the store while clients wait. Ends with the last one.
async fn poll(followers: Arc<Followers>) {
    let polling = Activity::new("looking for new events");
    let mut seen = None;
    let mut checked_at = Instant::now();

    loop {
        let found = timeout(ANSWER_TIMEOUT, followers.wake_for_new(seen)).await;
        let mut more = false;

        match found.unwrap_or(Err(StoreError::Silent(ANSWER_TIMEOUT))) {
            Ok(found) => {
                (seen, more) = (Some(found.0), found.1);
                polling.succeeded();
            }
            Err(error) => polling.failed(&error),
        }

        if checked_at.elapsed() >= ACCESS_INTERVAL {
            checked_at = Instant::now();
            // If it fails, the poll fails too, and logs it. The check is repeated.
            let _ = timeout(ANSWER_TIMEOUT, followers.end_revoked()).await;
        }

        if !more {
            sleep(POLL_INTERVAL).await;
        }

        if followers.stop_if_unused() {
            return;
        }
    }
}

impl Follower {
    /// Waits until there may be new events, or until [`Follower::is_revoked`].
    pub async fn woken(&self) {
        self.signal.notify.notified().await;
    }

    /// Whether the token or the session that the client was authenticated with is not valid any
    /// more.
    pub fn is_revoked(&self) -> bool {
        self.signal.is_revoked.load(Ordering::Relaxed)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut state = self.followers.state.lock();
        if let Some(signals) = state.by_user.get_mut(&self.user) {
            signals.remove(&self.id);

            if signals.is_empty() {
                state.by_user.remove(&self.user);
            }
        }

        gauge!(telemetry::FEED_STREAMS).decrement(1.0);
    }
}
