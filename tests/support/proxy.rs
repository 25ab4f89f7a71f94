//! A TCP proxy that simulates network faults.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// The state of the simulated network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    Fair,
    /// Data is not forwarded, and connections stay open.
    Frozen,
    /// Forwards this many bytes every ten milliseconds.
    Slow(usize),
}

/// No limit.
const UNLIMITED: i64 = i64::MAX / 2;

struct Shared {
    weather: watch::Sender<Weather>,
    /// A counter. Connections that were opened at a lower count are reset.
    resets: watch::Sender<u64>,
    /// A counter. Connections that were opened at a lower count stay open, but data is no longer forwarded.
    forgets: watch::Sender<u64>,
    /// Bytes to forward to the client until its connection is cut.
    budget: AtomicI64,
}

/// Forwards connections to `target` until it is dropped.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    pub async fn start(target: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("a bound listener").port();
        let shared = Arc::new(Shared {
            weather: watch::channel(Weather::Fair).0,
            resets: watch::channel(0).0,
            forgets: watch::channel(0).0,
            budget: AtomicI64::new(UNLIMITED),
        });
        let target = SocketAddr::from(([127, 0, 0, 1], target));
        let task = tokio::spawn(accept(listener, target, shared.clone()));
        Proxy { port, shared, _task: AbortOnDropHandle::new(task) }
    }

    pub fn weather(&self, weather: Weather) {
        self.shared.weather.send_replace(weather);
    }

    /// Resets all connections.
    pub fn reset(&self) {
        self.shared.resets.send_modify(|count| *count += 1);
    }

    /// Forgets all connections, as a NAT gateway does: data is not forwarded, and they stay open. New connections work.
    pub fn forget(&self) {
        self.shared.forgets.send_modify(|count| *count += 1);
    }

    /// Cuts a connection after this many more bytes to the client, in the middle of a message.
    pub fn cut_after(&self, bytes: i64) {
        self.shared.budget.store(bytes, Ordering::SeqCst);
    }

    /// Whether the requested cut has happened.
    pub fn has_cut(&self) -> bool {
        // Bytes of the next connection were subtracted as well.
        self.shared.budget.load(Ordering::SeqCst) > UNLIMITED / 2
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(serve(client, target, shared.clone()));
    }
}

async fn serve(client: TcpStream, target: SocketAddr, shared: Arc<Shared>) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a fresh socket");
        stream.set_zero_linger().expect("a fresh socket");
    }
    let (mut resets, resets_before) = (shared.resets.subscribe(), *shared.resets.borrow());
    let (mut forgets, forgets_before) = (shared.forgets.subscribe(), *shared.forgets.borrow());
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let forgotten = async {
        let _ = forgets.wait_for(|count| *count != forgets_before).await;
    };
    tokio::select! {
        biased;
        () = forgotten => {}
        () = forward(&mut from_client, &mut to_server, &shared, false) => return,
        () = forward(&mut from_server, &mut to_client, &shared, true) => return,
        _ = resets.wait_for(|count| *count != resets_before) => return,
    }
    // The sockets stay open, so that neither side notices.
    let _ = resets.wait_for(|count| *count != resets_before).await;
}

async fn forward(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, shared: &Shared, to_client: bool) {
    let mut weather = shared.weather.subscribe();
    let mut buffer = vec![0; 16 << 10];
    loop {
        let now = *weather.wait_for(|weather| *weather != Weather::Frozen).await.expect("the proxy holds the sender");
        let most = if let Weather::Slow(bytes) = now { bytes } else { buffer.len() };
        let Ok(read @ 1..) = from.read(&mut buffer[..most]).await else { return };
        let _ = weather.wait_for(|weather| *weather != Weather::Frozen).await;
        let left = if to_client { shared.budget.fetch_sub(read as i64, Ordering::SeqCst) } else { UNLIMITED };
        if left <= read as i64 {
            let _ = to.write_all(&buffer[..left.max(0) as usize]).await;
            shared.budget.store(UNLIMITED, Ordering::SeqCst);
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        if let Weather::Slow(_) = now {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
