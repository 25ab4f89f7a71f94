//! The connected clients of a listener. When there are too many, or one is silent for too long, the client that the server has waited
//! for the longest is disconnected.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody};
use futures_util::StreamExt;
use futures_util::stream::poll_fn;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// How long a parked client may not take what was written for it. A comment is written to each stream every 15 seconds.
const LONGEST_STALL: Duration = Duration::from_secs(60);

/// How long a client without a connection permit has to take its last response.
const LAST_RESPONSE: Duration = Duration::from_secs(1);

/// All clients of one listener. A slow client keeps its connection only until another client needs it.
#[derive(Clone, Default)]
pub struct Clients(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    next: u64,
    by_id: HashMap<u64, Arc<Client>>,
}

/// One connection.
pub struct Client {
    state: Mutex<State>,
    evicted: CancellationToken,
    /// Limits the connections of the listener.
    connections: Arc<Semaphore>,
    /// None while the client is parked, and afterwards if no permit was free.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// When one of the other fields last changed.
    since: Instant,
    /// Whether it has sent a whole request head.
    has_sent_head: bool,
    /// Requests in progress.
    handled: usize,
    /// Requests in progress that wait for the rest of their body.
    waiting: usize,
    /// Responses of unknown length that are being sent.
    streaming: usize,
    /// Requests that wait for events.
    parked: usize,
    has_been_parked: bool,
    /// No connection permit was free when its last request had waited for events: it is disconnected when it is idle.
    is_surplus: bool,
}

/// Removes the client from the registry when dropped.
pub struct Registration {
    clients: Clients,
    id: u64,
    pub client: Arc<Client>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evict {
    /// Any client that the server waits for.
    Waiting,
    /// Only clients that occupy a request whose body has not arrived completely.
    WaitingInRequest,
}

impl Clients {
    pub fn register(&self, connections: Arc<Semaphore>, permit: OwnedSemaphorePermit) -> Registration {
        let (state, permit) = (Mutex::new(State::new()), Mutex::new(Some(permit)));
        let client = Arc::new(Client { state, evicted: CancellationToken::new(), connections, permit });
        let mut registry = self.0.lock().expect("no holder of this lock panics");
        let id = registry.next;
        registry.next += 1;
        registry.by_id.insert(id, client.clone());
        Registration { clients: self.clone(), id, client }
    }

    /// Disconnects the client that the server has waited for the longest. False if there is none.
    pub fn evict(&self, which: Evict) -> bool {
        let mut registry = self.0.lock().expect("no holder of this lock panics");
        let waited_for = registry.by_id.iter().filter_map(|(id, client)| Some((client.awaited_since(which)?, *id)));
        let Some((_, id)) = waited_for.min() else { return false };
        if let Some(client) = registry.by_id.remove(&id) {
            client.evicted.cancel();
        }
        true
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.clients.0.lock().expect("no holder of this lock panics").by_id.remove(&self.id);
    }
}

impl State {
    fn new() -> State {
        State {
            since: Instant::now(),
            has_sent_head: false,
            handled: 0,
            waiting: 0,
            streaming: 0,
            parked: 0,
            has_been_parked: false,
            is_surplus: false,
        }
    }
}

impl Client {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().expect("no holder of this lock panics");
        change(&mut state);
        state.since = Instant::now();
    }

    fn awaited_since(&self, which: Evict) -> Option<Instant> {
        let state = *self.state.lock().expect("no holder of this lock panics");
        let is_awaited = state.handled == state.waiting && state.parked == 0;
        (is_awaited && (which == Evict::Waiting || state.waiting > 0)).then_some(state.since)
    }

    /// Returns when the connection will be closed if the client stays silent. None while a request is in progress.
    fn deadline(&self, silence: SilenceLimits) -> Option<Instant> {
        let state = *self.state.lock().expect("no holder of this lock panics");
        if state.parked > 0 {
            return Some(state.since + LONGEST_STALL);
        }
        let wait = match (state.is_surplus, state.has_sent_head) {
            (true, _) => LAST_RESPONSE,
            (false, true) => silence.idle,
            (false, false) => silence.header,
        };
        (state.handled == 0 && state.streaming == 0).then(|| state.since + wait)
    }

    /// Completes when the connection has to be closed.
    pub async fn expired(&self, silence: SilenceLimits) {
        let overdue = async {
            loop {
                // The deadline may change meanwhile, but never to an earlier time than this.
                let check_at = Instant::now() + silence.idle.min(silence.header).min(LONGEST_STALL);
                match self.deadline(silence) {
                    Some(deadline) if deadline <= Instant::now() => return,
                    deadline => tokio::time::sleep_until(deadline.map_or(check_at, |at| at.min(check_at)).into()).await,
                }
            }
        };
        tokio::select! { () = overdue => {}, () = self.evicted.cancelled() => {} }
    }

    /// Whether it has waited for events.
    pub fn has_been_parked(&self) -> bool {
        self.state.lock().expect("no holder of this lock panics").has_been_parked
    }

    /// Releases the connection permit until the returned guard is dropped: the client waits for events, within a limit of its own. It is
    /// not disconnected in favour of others.
    fn park(self: &Arc<Self>) -> Parked {
        self.change(|state| (state.parked, state.has_been_parked) = (state.parked + 1, true));
        *self.permit.lock().expect("no holder of this lock panics") = None;
        Parked(self.clone())
    }

    fn unpark(&self) {
        let mut permit = self.permit.lock().expect("no holder of this lock panics");
        self.change(|state| {
            state.parked -= 1;
            if state.parked == 0 && permit.is_none() {
                *permit = self.connections.clone().try_acquire_owned().ok();
                state.is_surplus = permit.is_none();
            }
        });
    }

    /// Counts a request as in progress until the returned guard is dropped.
    pub fn handling(self: &Arc<Self>) -> impl Drop + Send + use<> {
        self.change(|state| (state.has_sent_head, state.handled) = (true, state.handled + 1));
        Undo(self.clone(), |state| state.handled -= 1)
    }

    /// Wraps the request's body to record while the server waits for it.
    pub fn watch_request(self: &Arc<Self>, body: Body) -> Body {
        if body.is_end_stream() {
            return body;
        }
        let (client, mut frames, mut waiting) = (self.clone(), body.into_data_stream(), None);
        Body::from_stream(poll_fn(move |context| {
            let polled = frames.poll_next_unpin(context);
            if polled.is_ready() {
                waiting = None;
            } else if waiting.is_none() {
                client.change(|state| state.waiting += 1);
                waiting = Some(Undo(client.clone(), |state| state.waiting -= 1));
            }
            polled
        }))
    }

    /// Wraps a response's body of unknown length, which may be produced for as long as the client reads.
    pub fn watch_response(self: &Arc<Self>, body: Body) -> Body {
        if body.size_hint().exact().is_some() {
            return body;
        }
        self.change(|state| state.streaming += 1);
        let guard = Undo(self.clone(), |state| state.streaming -= 1);
        let mut frames = body.into_data_stream();
        Body::from_stream(poll_fn(move |context| {
            let _held = &guard;
            frames.poll_next_unpin(context)
        }))
    }
}

/// What a request occupies: one of the requests in progress, and through its client one of the connections. An extension of the request.
#[derive(Clone)]
pub struct Occupied {
    client: Arc<Client>,
    request: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl Occupied {
    pub fn new(client: &Arc<Client>, request: OwnedSemaphorePermit) -> Occupied {
        Occupied { client: client.clone(), request: Arc::new(Mutex::new(Some(request))) }
    }

    /// Releases both, for a request that waits for events: its duration has no relation to the load.
    pub fn park(&self) -> Parked {
        *self.request.lock().expect("no holder of this lock panics") = None;
        self.client.park()
    }
}

/// A request that waits for events, until it is dropped.
pub struct Parked(Arc<Client>);

impl Parked {
    /// Records that the client has taken what was written for it.
    pub fn progress(&self) {
        self.0.change(|_| {});
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// Reverts a change of a client's state when it is dropped.
struct Undo(Arc<Client>, fn(&mut State));

impl Drop for Undo {
    fn drop(&mut self) {
        self.0.change(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register(clients: &Clients, connections: &Arc<Semaphore>) -> Registration {
        clients.register(connections.clone(), connections.clone().try_acquire_owned().unwrap())
    }

    #[test]
    fn a_parked_client_occupies_no_connection_and_is_not_evicted() {
        let (clients, connections) = (Clients::default(), Arc::new(Semaphore::new(1)));
        let silence = SilenceLimits { header: Duration::from_secs(10), idle: Duration::from_secs(75) };
        let registration = register(&clients, &connections);
        let client = &registration.client;
        let head = client.handling();
        let (one, other) = (client.park(), client.park());
        drop(head);
        assert!(!clients.evict(Evict::Waiting));
        let since = client.state.lock().unwrap().since;
        assert_eq!(client.deadline(silence), Some(since + LONGEST_STALL));
        let another = register(&clients, &connections);
        drop((one, other));
        let since = client.state.lock().unwrap().since;
        assert_eq!(client.deadline(silence), Some(since + LAST_RESPONSE), "its connection was given to another client");
        drop(another);
        drop(client.park());
        assert_eq!(connections.available_permits(), 0, "it has a permit again");
    }

    #[test]
    fn the_client_that_the_server_waited_for_longest_is_evicted_first_and_a_served_one_never() {
        let (clients, connections) = (Clients::default(), Arc::new(Semaphore::new(3)));
        let [served, slow, idle] = std::array::from_fn(|_| register(&clients, &connections));
        let _request = served.client.handling();
        let body = {
            let request = slow.client.handling();
            assert!(!clients.evict(Evict::WaitingInRequest), "the body may have arrived");
            drop(request);
            slow.client.handling()
        };
        slow.client.change(|state| state.waiting += 1);
        assert!(clients.evict(Evict::Waiting));
        assert!(idle.client.evicted.is_cancelled(), "the server has waited for it longer than for the body");
        assert!(clients.evict(Evict::WaitingInRequest));
        assert!(slow.client.evicted.is_cancelled());
        assert!(!clients.evict(Evict::Waiting));
        assert!(!served.client.evicted.is_cancelled());
        drop(body);
    }

    #[test]
    fn silence_has_a_limit_and_requests_have_none() {
        let silence = SilenceLimits { header: Duration::from_secs(10), idle: Duration::from_secs(75) };
        let registration = register(&Clients::default(), &Arc::new(Semaphore::new(1)));
        let client = &registration.client;
        let wait = |client: &Client| {
            let since = client.state.lock().unwrap().since;
            client.deadline(silence).map(|deadline| deadline - since)
        };
        assert_eq!(wait(client), Some(silence.header));
        let request = client.handling();
        assert_eq!(wait(client), None);
        drop(request);
        assert_eq!(wait(client), Some(silence.idle));
        let stream =
            client.watch_response(Body::from_stream(futures_util::stream::pending::<Result<String, std::io::Error>>()));
        assert_eq!(wait(client), None);
        drop(stream);
        assert_eq!(wait(client), Some(silence.idle));
    }
}
