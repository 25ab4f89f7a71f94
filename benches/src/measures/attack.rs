//! The attacks of `hostile`: tasks that last until they are ended.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::figures::Figures;
use crate::platform::{ROWS_APART, Writer};
use crate::sidecar::{Sidecar, token};

/// Ten times the default of `limits.requests_per_second`. More would measure how this machine's two processors are shared
/// between the attacker and what it attacks.
const REQUESTS_PER_SECOND: u32 = 1_000;
/// Requests of the hostile tenant that are under way at a time.
const REQUESTERS: u32 = 32;
const IDLE_CONNECTIONS: usize = 500;
const SLOW_HEADERS: usize = 100;
const BYTE_EVERY: Duration = Duration::from_millis(100);
/// Transitions per second, each of which goes to ten receivers that hang.
const TRANSITIONS: u32 = 50;
/// The rows of each hostile user that move in turn.
const ROWS: u64 = 100;

#[derive(Clone)]
pub struct Attack {
    /// The webhook whose log is searched over the API; none, and only receivers hang.
    searched: Option<String>,
    /// Users whose receivers hang.
    users: Range<u64>,
}

impl Attack {
    pub fn on_the_api(user: u64, searched: String) -> Attack {
        Attack { searched: Some(searched), users: user..user + 1 }
    }

    pub fn by_receivers(users: Range<u64>) -> Attack {
        Attack { searched: None, users }
    }
}

#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    served: AtomicU64,
}

/// An attack under way.
pub struct Attackers {
    tasks: JoinSet<anyhow::Result<()>>,
    counts: Arc<Counts>,
    begun: Instant,
    on_the_api: bool,
}

impl Attackers {
    pub fn start(attack: Attack, sidecar: &Sidecar, platform: &str) -> anyhow::Result<Attackers> {
        let (mut tasks, counts) = (JoinSet::new(), Arc::new(Counts::default()));
        let on_the_api = attack.searched.is_some();
        if let Some(searched) = &attack.searched {
            let url =
                format!("{}/webhooks/{searched}/logs?event=payment.statement_ready&outcome=failed", sidecar.api());
            let token = token(attack.users.start)?;
            let client = reqwest::Client::builder().no_proxy().build()?;
            for _ in 0..REQUESTERS {
                tasks.spawn(search(client.get(&url).bearer_auth(&token), counts.clone()));
            }
            let (_, address) = sidecar.api().split_once("://").context("the API has no address")?;
            let address = address.split('/').next().unwrap_or_default();
            for _ in 0..IDLE_CONNECTIONS {
                tasks.spawn(idle(address.to_owned()));
            }
            for _ in 0..SLOW_HEADERS {
                tasks.spawn(slow_headers(address.to_owned()));
            }
        }
        tasks.spawn(transitions(platform.to_owned(), attack.users));
        Ok(Attackers { tasks, counts, begun: Instant::now(), on_the_api })
    }

    /// Ends it. Fails where a task of it has failed: the attack was none then.
    pub async fn end(mut self, figures: &mut Figures) -> anyhow::Result<()> {
        if let Some(ended) = self.tasks.try_join_next() {
            ended?.context("an attack ended early")?;
        }
        self.tasks.shutdown().await;
        if self.on_the_api {
            let per_second =
                |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / self.begun.elapsed().as_secs_f64();
            figures.add("hostile requests, answered", "1/s", per_second(&self.counts.answered));
            figures.add("hostile requests, served", "1/s", per_second(&self.counts.served));
        }
        Ok(())
    }
}

fn steady(per_second: f64) -> tokio::time::Interval {
    let mut beat = interval(Duration::from_secs_f64(1.0 / per_second));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

/// Asks for lines of the log that do not exist, and does not wait for answers that take long: the next request comes all the
/// same.
async fn search(request: reqwest::RequestBuilder, counts: Arc<Counts>) -> anyhow::Result<()> {
    let mut beat = steady(f64::from(REQUESTS_PER_SECOND) / f64::from(REQUESTERS));
    loop {
        beat.tick().await;
        let request = request.try_clone().context("a request without a body can be cloned")?;
        let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(2), request.send()).await else { continue };
        counts.answered.fetch_add(1, Ordering::Relaxed);
        if answer.status().is_success() {
            counts.served.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Holds a connection open without a word, and opens another when it is closed.
async fn idle(address: String) -> anyhow::Result<()> {
    let mut beat = steady(10.0);
    loop {
        beat.tick().await;
        let Ok(mut stream) = TcpStream::connect(&address).await else { continue };
        let _ = stream.read(&mut [0; 1]).await;
    }
}

/// Sends a request that never ends, a byte at a time.
async fn slow_headers(address: String) -> anyhow::Result<()> {
    let mut beat = interval(BYTE_EVERY);
    loop {
        beat.tick().await;
        let Ok(mut stream) = TcpStream::connect(&address).await else { continue };
        let mut sent = stream.write_all(b"GET /api/public/webhooks HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").await;
        while sent.is_ok() {
            beat.tick().await;
            sent = stream.write_all(b"x").await;
        }
    }
}

/// Moves rows of one user after the other.
async fn transitions(url: String, users: Range<u64>) -> anyhow::Result<()> {
    let writer = Writer::connect(&url).await?;
    let mut beat = steady(f64::from(TRANSITIONS));
    for number in 0_u64.. {
        beat.tick().await;
        let count = users.end - users.start;
        let (user, row) = (users.start + number % count, number / count % ROWS);
        writer.commit(user * ROWS_APART + row, 1).await?;
    }
    Ok(())
}
