//! Slow clients of the API in `hostile`: more of them than the API has connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::figures::{Figures, Must};
use crate::sidecar::{API_PATH, Sidecar, token};
use crate::wait::steady;

/// Clients of each kind: 1,200 in total, more than the default of `http.max_connections`, which is
/// 1,024. So there are always clients that the server has to disconnect in favour of others.
const EACH: usize = 300;
pub const ALL: usize = EACH * Kind::ALL.len();
const BYTE_EVERY: Duration = Duration::from_millis(100);
/// How often a client that was disconnected connects again.
const CONNECTS_PER_SECOND: f64 = 10.0;
/// The length of a slow body: takes longer than any time limit, and is within
/// `http.max_body_bytes`.
const BODY: usize = 16 << 10;
/// A small buffer, so that the kernel does not take the response on behalf of a slow reader.
const READ_BUFFER: u32 = 4 << 10;
/// Clients with tokens belong to users of their own from this one on, so that
/// `limits.requests_per_second` does not reject them.
const FIRST_USER: u64 = 1_000_000;
/// Connections that were closed in favour of others.
const REFUSED: &str = "walhook_http_refused_total{limit=\"connections\"}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Sends nothing.
    Idle,
    /// Sends headers that do not end, a byte at a time.
    Headers,
    /// Sends a body a byte at a time.
    Body,
    /// Reads a long response a byte at a time.
    Reader,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::Idle, Kind::Headers, Kind::Body, Kind::Reader];

    const fn name(self) -> &'static str {
        match self {
            Kind::Idle => "idle",
            Kind::Headers => "slow headers",
            Kind::Body => "slow bodies",
            Kind::Reader => "slow readers",
        }
    }

    /// What the client sends at once.
    fn head(self, number: usize) -> anyhow::Result<String> {
        Ok(match self {
            Kind::Idle => String::new(),
            Kind::Headers => {
                format!("GET {API_PATH}/webhooks HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            }
            Kind::Body => format!(
                "POST {API_PATH}/webhooks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
                 Content-Type: application/json\r\nContent-Length: {BODY}\r\n\r\n",
                token(FIRST_USER + number as u64)?
            ),
            // The longest response that needs no token.
            Kind::Reader => {
                format!("GET {API_PATH}/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
            }
        })
    }
}

#[derive(Default)]
struct Counts {
    open: AtomicU64,
    connected: AtomicU64,
}

/// Counts a client as connected until it is dropped.
struct Open<'a>(&'a Counts);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Running slow clients.
pub struct SlowClients {
    tasks: JoinSet<anyhow::Result<()>>,
    counts: [Arc<Counts>; Kind::ALL.len()],
    started: Instant,
}

impl SlowClients {
    /// Starts the clients on `runtime`.
    pub fn start(sidecar: &Sidecar, runtime: &Handle) -> anyhow::Result<SlowClients> {
        let mut tasks = JoinSet::new();
        let counts = Kind::ALL.map(|_| Arc::<Counts>::default());
        for (kind, counts) in Kind::ALL.into_iter().zip(&counts) {
            for number in 0..EACH {
                let head = kind.head(number)?;
                let address = sidecar.api_address().to_owned();
                tasks.spawn_on(be_slow(kind, head, address, counts.clone()), runtime);
            }
        }

        Ok(SlowClients {
            tasks,
            counts,
            started: Instant::now(),
        })
    }

    /// Stops the clients. Fails if one of them has failed.
    pub async fn end(mut self, figures: &mut Figures, sidecar: &Sidecar) -> anyhow::Result<()> {
        if let Some(ended) = self.tasks.try_join_next() {
            ended??;
        }

        let seconds = self.started.elapsed().as_secs_f64();

        for (kind, counts) in Kind::ALL.into_iter().zip(&self.counts) {
            let open = counts.open.load(Ordering::Relaxed);
            let connected = counts.connected.load(Ordering::Relaxed);
            figures.add(
                format!("slow API clients, {}, connected at the end", kind.name()),
                "",
                open as f64,
            );
            figures.add(
                format!("slow API clients, {}, connects", kind.name()),
                "1/s",
                connected as f64 / seconds,
            );
        }

        // None means that there were too few clients to reach the limit.
        let closed = sidecar.metric(REFUSED).await?;
        figures.require(
            "connections closed in favor of others",
            "1/s",
            closed / seconds,
            Must::AtLeast(1.0),
        );

        self.tasks.shutdown().await;
        Ok(())
    }
}

/// Connects, is slow until the server closes the connection, and connects again.
async fn be_slow(
    kind: Kind,
    head: String,
    address: String,
    counts: Arc<Counts>,
) -> anyhow::Result<()> {
    let address = address.parse()?;
    let mut connects = steady(CONNECTS_PER_SECOND);

    loop {
        connects.tick().await;
        let socket = TcpSocket::new_v4()?;

        socket.set_recv_buffer_size(READ_BUFFER)?;
        let Ok(mut stream) = socket.connect(address).await else {
            continue;
        };

        counts.connected.fetch_add(1, Ordering::Relaxed);
        counts.open.fetch_add(1, Ordering::Relaxed);

        let _open = Open(&counts);

        // The server may close the connection at any time.
        let _ = converse(kind, &head, &mut stream).await;
    }
}

async fn converse(kind: Kind, head: &str, stream: &mut TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(head.as_bytes()).await?;

    let mut ticks = interval(BYTE_EVERY);

    loop {
        if kind != Kind::Idle {
            ticks.tick().await;
        }

        match kind {
            Kind::Idle | Kind::Reader if stream.read(&mut [0; 1]).await? == 0 => return Ok(()),
            Kind::Idle | Kind::Reader => {}
            Kind::Headers => stream.write_all(b"x").await?,
            // Whitespace before a JSON document.
            Kind::Body => stream.write_all(b" ").await?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_more_slow_clients_than_connections_and_slow_bodies_are_valid() {
        let http = walhook::config::Http::default();
        assert!(ALL > http.max_connections);
        assert!((BODY as u64) < http.max_body_bytes.0);

        for kind in Kind::ALL {
            let is_complete = kind.head(1).unwrap().ends_with("\r\n\r\n");
            assert_eq!(
                is_complete,
                matches!(kind, Kind::Body | Kind::Reader),
                "{kind:?}"
            );
        }
    }
}
