//! A TCP proxy that simulates network faults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::random::Random;

/// The state of the simulated network, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Fair,
    /// Data is not forwarded, and connections stay open.
    Frozen,
    /// Forwards this many bytes every ten milliseconds.
    Slow(usize),
    /// Forwards everything this much later.
    Late(Duration),
    /// Shows loss as TCP does: one chunk in [`STALLS`] waits for a retransmission, and one
    /// connection in some hundred chunks dies.
    Lossy,
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
}

/// No limit.
const UNLIMITED: i64 = i64::MAX / 2;
/// The most chunks under way in one direction: 16 MiB, more than a round trip of a second needs.
const UNDER_WAY: usize = 1_024;
const CHUNK: usize = 16 << 10;
/// In lossy weather: one chunk of so many is retransmitted, and one of so many is the last of its
/// connection.
const STALLS: u64 = 20;
const DEATHS: u64 = 500;
/// The shortest and the longest time until a retransmission arrives.
const RETRANSMISSION: [u64; 2] = [200, 1_000];

struct Shared {
    /// By direction.
    weather: [watch::Sender<Weather>; 2],
    /// A counter. Connections that were opened at a lower count are reset.
    resets: watch::Sender<u64>,
    /// A counter. Connections that were opened at a lower count stay open, but data is no longer
    /// forwarded.
    forgets: watch::Sender<u64>,
    /// A counter. Of connections that were opened at a lower count, the client's end is reset, and
    /// the server's stays open.
    severs: watch::Sender<u64>,
    /// Mean time after which each connection is reset. Zero for never.
    lifetime: watch::Sender<Duration>,
    /// Bytes to forward to the client until its connection is cut.
    budget: AtomicI64,
    /// Connections that were reset because of `lifetime`, or died in lossy weather.
    broken: AtomicU64,
    /// Connections that were accepted.
    accepted: AtomicU64,
    random: Mutex<Random>,
}

/// Forwards connections to `target` until it is dropped.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    pub async fn start(target: u16) -> Proxy {
        Proxy::start_at(Ipv4Addr::LOCALHOST.into(), target).await
    }

    /// Listens on another address than loopback.
    pub async fn start_at(address: IpAddr, target: u16) -> Proxy {
        let listener = TcpListener::bind((address, 0)).await.expect("a port");
        let port = listener.local_addr().expect("a bound listener").port();

        let shared = Arc::new(Shared {
            weather: [Weather::Fair; 2].map(|weather| watch::channel(weather).0),
            resets: watch::channel(0).0,
            forgets: watch::channel(0).0,
            severs: watch::channel(0).0,
            lifetime: watch::channel(Duration::ZERO).0,
            budget: AtomicI64::new(UNLIMITED),
            broken: AtomicU64::new(0),
            accepted: AtomicU64::new(0),
            random: Mutex::new(Random::new(1)),
        });

        let target = SocketAddr::from(([127, 0, 0, 1], target));
        let task = tokio::spawn(accept(listener, target, shared.clone()));
        Proxy {
            port,
            shared,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// Sets the weather in both directions.
    pub fn weather(&self, weather: Weather) {
        self.weather_to(Direction::ToServer, weather);
        self.weather_to(Direction::ToClient, weather);
    }

    pub fn weather_to(&self, direction: Direction, weather: Weather) {
        self.shared.weather[direction as usize].send_replace(weather);
    }

    /// Sets where the random decisions of lossy weather and of random resets start.
    pub fn seed(&self, seed: u64) {
        *self
            .shared
            .random
            .lock()
            .expect("nobody panics with this lock") = Random::new(seed);
    }

    /// Resets all connections.
    pub fn reset(&self) {
        self.shared.resets.send_modify(|count| *count += 1);
    }

    /// Resets each connection after a random time, with this mean. Zero ends that.
    pub fn reset_after(&self, mean: Duration) {
        self.shared.lifetime.send_replace(mean);
    }

    /// Forgets all connections, as a NAT gateway does: data is not forwarded, and they stay open.
    /// New connections work.
    pub fn forget(&self) {
        self.shared.forgets.send_modify(|count| *count += 1);
    }

    /// Resets the client's end of all connections. The server does not notice. New connections
    /// work.
    pub fn sever(&self) {
        self.shared.severs.send_modify(|count| *count += 1);
    }

    /// Cuts a connection after this many more bytes to the client, in the middle of a message.
    pub fn cut_after(&self, bytes: i64) {
        self.shared.budget.store(bytes, Ordering::SeqCst);
    }

    /// Returns how many connections were accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Returns how many connections were reset or died at random since the last call.
    pub fn take_broken(&self) -> u64 {
        self.shared.broken.swap(0, Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        tokio::spawn(serve(client, target, shared.clone()));
    }
}

async fn serve(client: TcpStream, target: SocketAddr, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };

    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a fresh socket");
        stream.set_zero_linger().expect("a fresh socket");
    }

    let mut resets = shared.resets.subscribe();
    let resets_before = *shared.resets.borrow();
    let mut forgets = shared.forgets.subscribe();
    let forgets_before = *shared.forgets.borrow();
    let mut severs = shared.severs.subscribe();
    let severs_before = *shared.severs.borrow();
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let forgotten = async {
        let _ = forgets.wait_for(|count| *count != forgets_before).await;
    };

    let is_severed = tokio::select! {
        biased;
        () = forgotten => false,
        _ = severs.wait_for(|count| *count != severs_before) => true,
        _ = resets.wait_for(|count| *count != resets_before) => return,
        () = end_of_lifetime(&shared) => return,
        dies = forward(&mut from_client, &mut to_server, &shared, Direction::ToServer) => match dies {
            true => false,
            false => return,
        },
        dies = forward(&mut from_server, &mut to_client, &shared, Direction::ToClient) => match dies {
            true => false,
            false => return,
        },
    };

    if is_severed {
        drop((from_client, to_client));
    }

    // The other sockets stay open, so that nobody notices.
    let _ = resets.wait_for(|count| *count != resets_before).await;
}

/// Waits for a random time while connections are reset at random.
async fn end_of_lifetime(shared: &Shared) {
    let mut lifetime = shared.lifetime.subscribe();

    loop {
        let mean = *lifetime.borrow_and_update();
        let wait = match mean.is_zero() {
            true => Duration::MAX,
            false => shared.random(Duration::ZERO, mean * 2),
        };

        tokio::select! {
            () = tokio::time::sleep(wait) => break,
            changed = lifetime.changed() => changed.expect("the proxy holds the sender"),
        }
    }

    shared.broken.fetch_add(1, Ordering::SeqCst);
}

/// Forwards until one end closes its connection. Returns true if the connection dies without that
/// either end notices.
async fn forward(
    from: &mut OwnedReadHalf,
    to: &mut OwnedWriteHalf,
    shared: &Shared,
    direction: Direction,
) -> bool {
    let (sender, mut chunks) = mpsc::channel(UNDER_WAY);
    let read = async move {
        loop {
            let mut chunk = vec![0; CHUNK];
            let count = tokio::select! {
                count = from.read(&mut chunk) => count.unwrap_or(0),
                () = sender.closed() => 0,
            };

            chunk.truncate(count);

            if count == 0 || sender.send((Instant::now(), chunk)).await.is_err() {
                return;
            }
        }
    };

    let write = async move {
        while let Some((arrived, chunk)) = chunks.recv().await {
            match shared.write(to, direction, arrived, &chunk).await {
                Written::Whole => {}
                Written::Closed => return false,
                Written::Died => return true,
            }
        }

        false
    };

    tokio::join!(read, write).1
}

enum Written {
    Whole,
    /// One of the ends has closed the connection, or it was cut.
    Closed,
    Died,
}

impl Shared {
    async fn write(
        &self,
        to: &mut OwnedWriteHalf,
        direction: Direction,
        arrived: Instant,
        chunk: &[u8],
    ) -> Written {
        let mut left = chunk;
        while !left.is_empty() {
            let now = self.thawed(direction).await;
            match now {
                Weather::Late(latency) => tokio::time::sleep_until(arrived + latency).await,
                Weather::Lossy if self.one_in(DEATHS) => {
                    self.broken.fetch_add(1, Ordering::SeqCst);
                    return Written::Died;
                }
                Weather::Lossy if self.one_in(STALLS) => {
                    let [shortest, longest] = RETRANSMISSION.map(Duration::from_millis);
                    tokio::time::sleep(self.random(shortest, longest)).await;
                }
                _ => {}
            }

            self.thawed(direction).await;
            let most = if let Weather::Slow(bytes) = now {
                bytes.min(left.len())
            } else {
                left.len()
            };

            let (piece, rest) = left.split_at(most);
            let is_limited = direction == Direction::ToClient;
            let budget = if is_limited {
                self.budget.fetch_sub(most as i64, Ordering::SeqCst)
            } else {
                UNLIMITED
            };

            if budget <= most as i64 {
                let _ = to.write_all(&piece[..budget.max(0) as usize]).await;
                self.budget.store(UNLIMITED, Ordering::SeqCst);
                return Written::Closed;
            }

            if to.write_all(piece).await.is_err() {
                return Written::Closed;
            }

            if let Weather::Slow(_) = now {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }

            left = rest;
        }

        Written::Whole
    }

    /// Waits until data is forwarded, and returns the weather.
    async fn thawed(&self, direction: Direction) -> Weather {
        let mut weather = self.weather[direction as usize].subscribe();
        *weather
            .wait_for(|weather| *weather != Weather::Frozen)
            .await
            .expect("the proxy holds the sender")
    }

    fn one_in(&self, count: u64) -> bool {
        self.random
            .lock()
            .expect("nobody panics with this lock")
            .next()
            .is_multiple_of(count)
    }

    fn random(&self, from: Duration, to: Duration) -> Duration {
        let random = self
            .random
            .lock()
            .expect("nobody panics with this lock")
            .next();
        from + (to - from).mul_f64(random as f64 / u64::MAX as f64)
    }
}
