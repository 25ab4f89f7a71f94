//! The connected clients of a listener. When there are too many, or one is silent for too long, the
//! client that the server has waited for the longest is disconnected.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::budget::{Budget, InProgress, Share, Unsent};
use super::problem::Problem;
use crate::domain::event::UserId;

/// How long a client may take nothing of what was written for it.
const LONGEST_STALL: Duration = Duration::from_secs(10);

/// How long a client may take to send the body of a request, or take nothing of a response, before
/// it may be disconnected in favour of others.
const SLOW: Duration = Duration::from_secs(1);

/// How long a client without a connection permit has to take its last response.
const LAST_RESPONSE: Duration = Duration::from_secs(1);

/// All clients of one listener. A slow client keeps its connection only until another client needs
/// it.
#[derive(Clone, Default)]
pub struct Clients(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    next: u64,
    by_id: HashMap<u64, Arc<ClientConnection>>,
}

/// One connection. It has one request at a time.
pub struct ClientConnection {
    state: Mutex<ClientState>,
    evicted: CancellationToken,
    /// Limits the connections of the listener.
    connections: Arc<Semaphore>,
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionPhase {
    /// Waits for the head of the first request.
    FirstHead,
    /// Waits for the head of the next request.
    NextHead,
    /// Waits for the body of a request.
    Body,
    /// A handler works on a request.
    Handled,
    /// The response is being written.
    Response,
}

struct ClientState {
    phase: ConnectionPhase,
    /// When the phase began.
    since: Instant,
    /// Since when the client has taken nothing of what is to be written. None if nothing waits for
    /// it.
    stalled_since: Option<Instant>,
    /// None while the client is parked, and afterwards if no permit was free: the client is then
    /// disconnected when it is idle.
    permit: Option<OwnedSemaphorePermit>,
    /// Whether everything of the response was passed on to be written.
    is_produced: bool,
    /// The bytes of the response, which are counted until they are written.
    unsent: Option<Unsent>,
}

/// Removes the client from the registry when dropped.
pub struct Registration {
    clients: Clients,
    id: u64,
    pub client: Arc<ClientConnection>,
}

/// How long a client may be silent.
#[derive(Clone, Copy, Debug)]
pub struct SilenceLimits {
    /// From the connection's start to the end of the first request's head.
    pub header: Duration,
    /// Between a response and the end of the next request's head.
    pub idle: Duration,
}

/// Which clients may be disconnected.
#[derive(Clone, Copy)]
pub enum Evict<'a> {
    /// Any client that the server waits for.
    Waiting,
    /// Only clients that have not sent the whole body of their request for a while.
    SendingSlowly,
    /// Only clients that do not take their response. If a share is given, only those whose response
    /// counts for it.
    NotReading(Option<&'a Arc<Share>>),
}

impl Clients {
    pub fn register(
        &self,
        connections: Arc<Semaphore>,
        permit: OwnedSemaphorePermit,
    ) -> Registration {
        let client = Arc::new(ClientConnection {
            state: Mutex::new(ClientState::new(permit)),
            evicted: CancellationToken::new(),
            connections,
        });

        let mut registry = self.0.lock();
        let id = registry.next;

        registry.next += 1;
        registry.by_id.insert(id, client.clone());

        Registration {
            clients: self.clone(),
            id,
            client,
        }
    }

    /// Disconnects the client that the server has waited for the longest. False if there is none.
    pub fn evict(&self, which: Evict) -> bool {
        let mut registry = self.0.lock();
        let waited_for = registry
            .by_id
            .iter()
            .filter_map(|(id, client)| Some((client.awaited_since(which)?, *id)));
        let Some((_, id)) = waited_for.min() else {
            return false;
        };

        if let Some(client) = registry.by_id.remove(&id) {
            client.evicted.cancel();
        }

        true
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.clients.0.lock().by_id.remove(&self.id);
    }
}

impl ClientState {
    fn new(permit: OwnedSemaphorePermit) -> ClientState {
        ClientState {
            phase: ConnectionPhase::FirstHead,
            since: Instant::now(),
            stalled_since: None,
            permit: Some(permit),
            is_produced: false,
            unsent: None,
        }
    }

    fn enter(&mut self, phase: ConnectionPhase) {
        self.phase = phase;
        self.since = Instant::now();
    }
}

impl ClientConnection {
    fn change<T>(&self, change: impl FnOnce(&mut ClientState) -> T) -> T {
        change(&mut self.state.lock())
    }

    pub fn enter(&self, phase: ConnectionPhase) {
        self.change(|state| state.enter(phase));
    }

    /// Begins to write a response, whose bytes are counted until they are written.
    pub fn respond(&self, unsent: Option<Unsent>) {
        self.change(|state| {
            state.enter(ConnectionPhase::Response);
            state.is_produced = false;
            state.unsent = unsent;
        });
    }

    /// Records that the whole response was passed on to be written.
    pub fn produced(&self) {
        self.change(|state| state.is_produced = true);
    }

    /// Records that everything passed on so far was written.
    pub fn flushed(&self) {
        self.change(|state| {
            state.stalled_since = None;

            if state.phase == ConnectionPhase::Response && state.is_produced {
                state.unsent = None;
                state.enter(ConnectionPhase::NextHead);
            }
        });
    }

    /// Records whether the client took some of what is to be written.
    pub fn took(&self, some: bool) {
        self.change(|state| match some {
            true => state.stalled_since = None,
            false => {
                state.stalled_since.get_or_insert_with(Instant::now);
            }
        });
    }

    fn awaited_since(&self, which: Evict) -> Option<Instant> {
        self.change(|state| {
            let awaits_request = matches!(
                state.phase,
                ConnectionPhase::FirstHead | ConnectionPhase::NextHead | ConnectionPhase::Body
            );
            let is_slow = |since: &Instant| since.elapsed() > SLOW;

            match which {
                Evict::Waiting if awaits_request => Some(state.since),
                Evict::Waiting => state.stalled_since,
                Evict::SendingSlowly => Some(state.since)
                    .filter(|_| state.phase == ConnectionPhase::Body)
                    .filter(is_slow),
                Evict::NotReading(share) => {
                    let counts = |unsent: &Unsent| {
                        share.is_none_or(|share| Arc::ptr_eq(&unsent.share, share))
                    };

                    state
                        .stalled_since
                        .filter(is_slow)
                        .filter(|_| state.unsent.as_ref().is_some_and(counts))
                }
            }
        })
    }

    /// Returns when the connection will be closed if the client neither sends nor takes anything.
    /// None while the server works.
    fn deadline(&self, silence: SilenceLimits) -> Option<Instant> {
        self.change(|state| {
            let silent = match state.phase {
                ConnectionPhase::FirstHead => Some(state.since + silence.header),
                ConnectionPhase::NextHead if state.permit.is_none() => {
                    Some(state.since + LAST_RESPONSE)
                }
                ConnectionPhase::NextHead => Some(state.since + silence.idle),
                ConnectionPhase::Body | ConnectionPhase::Handled | ConnectionPhase::Response => {
                    None
                }
            };

            let stalled = state.stalled_since.map(|since| since + LONGEST_STALL);
            silent.into_iter().chain(stalled).min()
        })
    }

    /// Completes when the connection has to be closed.
    pub async fn expired(&self, silence: SilenceLimits) {
        let overdue = async {
            loop {
                // The deadline may change meanwhile, but never to an earlier time than this.
                let check_at = Instant::now() + silence.idle.min(silence.header).min(LONGEST_STALL);

                match self.deadline(silence) {
                    Some(deadline) if deadline <= Instant::now() => return,
                    deadline => {
                        tokio::time::sleep_until(
                            deadline.map_or(check_at, |at| at.min(check_at)).into(),
                        )
                        .await
                    }
                }
            }
        };
        tokio::select! { () = overdue => {}, () = self.evicted.cancelled() => {} }
    }

    /// Releases the connection permit until the returned guard is dropped: the client waits for
    /// events, within a limit of its own. It is not disconnected in favour of others.
    fn park(self: &Arc<Self>) -> Parked {
        self.change(|state| state.permit = None);
        Parked(self.clone())
    }

    fn unpark(&self) {
        let permit = self.connections.clone().try_acquire_owned().ok();
        self.change(|state| state.permit = permit);
    }
}

/// What a request occupies: a part of its user's share of the budget, and through its client one of
/// the connections. An extension of the request.
#[derive(Clone)]
pub struct Occupied {
    client: Arc<ClientConnection>,
    budget: Arc<Budget>,
    admitted: Arc<Mutex<Admitted>>,
}

struct Admitted {
    share: Arc<Share>,
    /// None while the request waits.
    in_progress: Option<InProgress>,
}

impl Occupied {
    /// Waits until one more request may be in progress, for which nobody is authenticated.
    pub async fn begin(
        client: &Arc<ClientConnection>,
        budget: &Arc<Budget>,
    ) -> Result<Occupied, Problem> {
        let share = budget.share(None);
        let in_progress = Some(budget.admit(&share).await?);
        Ok(Occupied {
            client: client.clone(),
            budget: budget.clone(),
            admitted: Arc::new(Mutex::new(Admitted { share, in_progress })),
        })
    }

    fn admitted(&self) -> MutexGuard<'_, Admitted> {
        self.admitted.lock()
    }

    /// Counts the request for its user from now on. Waits until the user may have one more in
    /// progress.
    pub async fn authenticated(&self, user: &UserId) -> Result<(), Problem> {
        let share = self.budget.share(Some(user));
        if Arc::ptr_eq(&share, &self.share()) {
            return Ok(());
        }

        *self.admitted() = Admitted {
            share: share.clone(),
            in_progress: None,
        };

        let in_progress = self.budget.admit(&share).await?;
        self.admitted().in_progress = Some(in_progress);
        Ok(())
    }

    pub fn share(&self) -> Arc<Share> {
        self.admitted().share.clone()
    }

    /// The request is no longer in progress.
    pub fn release(&self) {
        self.admitted().in_progress = None;
    }

    /// Releases the request and its connection, for a request that waits for events: its duration
    /// has no relation to the load.
    pub fn park(&self) -> Parked {
        self.release();
        self.client.park()
    }
}

/// A request that waits for events, until it is dropped.
pub struct Parked(Arc<ClientConnection>);

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: SilenceLimits = SilenceLimits {
        header: Duration::from_secs(10),
        idle: Duration::from_secs(75),
    };

    fn register(clients: &Clients, connections: &Arc<Semaphore>) -> Registration {
        clients.register(
            connections.clone(),
            connections.clone().try_acquire_owned().unwrap(),
        )
    }

    fn since(client: &ClientConnection) -> Instant {
        client.state.lock().since
    }

    #[test]
    fn a_parked_client_occupies_no_connection_and_is_not_evicted() {
        let clients = Clients::default();
        let connections = Arc::new(Semaphore::new(1));
        let registration = register(&clients, &connections);
        let client = &registration.client;

        client.enter(ConnectionPhase::Handled);
        let parked = client.park();

        client.respond(None);
        assert!(!clients.evict(Evict::Waiting));
        assert_eq!(client.deadline(SILENCE), None);

        let another = register(&clients, &connections);
        drop(parked);
        client.produced();
        client.flushed();
        assert_eq!(
            client.deadline(SILENCE),
            Some(since(client) + LAST_RESPONSE),
            "its connection was given to another client"
        );
        drop(another);
        drop(client.park());
        assert_eq!(connections.available_permits(), 0, "it has a permit again");
    }

    #[test]
    fn the_client_that_the_server_waited_for_longest_is_evicted_first_and_a_served_one_never() {
        let clients = Clients::default();
        let connections = Arc::new(Semaphore::new(3));
        let [served, slow, idle] = std::array::from_fn(|_| register(&clients, &connections));

        served.client.enter(ConnectionPhase::Handled);
        slow.client.enter(ConnectionPhase::Body);
        assert!(
            !clients.evict(Evict::SendingSlowly),
            "the body may arrive soon"
        );
        assert!(clients.evict(Evict::Waiting));
        assert!(
            idle.client.evicted.is_cancelled(),
            "the server has waited for it longer than for the body"
        );
        slow.client.change(|state| state.since -= 2 * SLOW);
        assert!(clients.evict(Evict::SendingSlowly));
        assert!(slow.client.evicted.is_cancelled());
        assert!(!clients.evict(Evict::Waiting));
        assert!(!served.client.evicted.is_cancelled());
    }

    #[test]
    fn a_client_that_takes_nothing_is_evicted_for_its_own_share_and_disconnected_after_a_while() {
        let clients = Clients::default();
        let budget = Budget::new(8);
        let [own, other] = ["1", "2"].map(|user| budget.share(Some(&UserId(user.into()))));
        let registration = register(&clients, &Arc::new(Semaphore::new(1)));
        let client = &registration.client;

        client.respond(Some(budget.reserve(&own, 1_000).ok().unwrap()));
        assert_eq!(client.deadline(SILENCE), None);

        client.took(false);
        client.produced();

        let stalled_since = client.state.lock().stalled_since.unwrap();
        client.took(false);
        assert_eq!(
            client.deadline(SILENCE),
            Some(stalled_since + LONGEST_STALL)
        );
        assert!(
            !clients.evict(Evict::NotReading(None)),
            "it may take some soon"
        );
        client.change(|state| state.stalled_since = Some(stalled_since - 2 * SLOW));
        assert!(!clients.evict(Evict::NotReading(Some(&other))));
        assert!(clients.evict(Evict::NotReading(Some(&own))));

        client.flushed();
        assert!(client.state.lock().unsent.is_none());
        assert_eq!(client.deadline(SILENCE), Some(since(client) + SILENCE.idle));
    }

    #[test]
    fn silence_has_a_limit_and_requests_have_none() {
        let registration = register(&Clients::default(), &Arc::new(Semaphore::new(1)));
        let client = &registration.client;
        let wait = || {
            client
                .deadline(SILENCE)
                .map(|deadline| deadline - since(client))
        };

        assert_eq!(wait(), Some(SILENCE.header));
        client.enter(ConnectionPhase::Handled);
        assert_eq!(wait(), None);
        client.respond(None);
        client.flushed();
        assert_eq!(wait(), None, "more of the response follows");
        client.produced();
        client.flushed();
        assert_eq!(wait(), Some(SILENCE.idle));
    }
}
