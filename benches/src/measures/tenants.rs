//! What other tenants do in `hostile`: tasks that run until they are stopped.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::figures::Figures;
use crate::platform::{ROW_ID_STRIDE, Writer};
use crate::sidecar::{Sidecar, token};

/// Ten times the default of `limits.requests_per_second`.
const REQUESTS_PER_SECOND: u32 = 1_000;
/// Concurrent requests of the hostile tenant.
const REQUESTERS: u32 = 32;
const IDLE_CONNECTIONS: usize = 500;
const SLOW_HEADERS: usize = 100;
const BYTE_EVERY: Duration = Duration::from_millis(100);
/// Transitions per second, each delivered to ten receivers.
const TRANSITIONS: u32 = 50;
/// Rows per user, which move in turn.
const ROWS: u64 = 100;

/// What the tenants do.
pub struct Activity {
    /// The webhook whose attempt log is searched over the API. `None` if the API is not attacked.
    pub searched: Option<String>,
    /// The users whose rows change.
    pub users: Range<u64>,
}

#[derive(Default)]
struct Counts {
    answered: AtomicU64,
    served: AtomicU64,
}

/// A running activity.
pub struct Running {
    tasks: JoinSet<anyhow::Result<()>>,
    counts: Arc<Counts>,
    started: Instant,
    on_the_api: bool,
}

impl Running {
    /// Starts the activity on `runtime`.
    pub fn start(activity: Activity, sidecar: &Sidecar, platform: &str, runtime: &Handle) -> anyhow::Result<Running> {
        let (mut tasks, counts) = (JoinSet::new(), Arc::new(Counts::default()));
        let on_the_api = activity.searched.is_some();
        if let Some(searched) = &activity.searched {
            let url =
                format!("{}/webhooks/{searched}/logs?event=payment.statement_ready&outcome=failed", sidecar.api());
            let token = token(activity.users.start)?;
            let client = reqwest::Client::builder().no_proxy().build()?;
            for _ in 0..REQUESTERS {
                tasks.spawn_on(search(client.get(&url).bearer_auth(&token), counts.clone()), runtime);
            }
            let (_, address) = sidecar.api().split_once("://").context("the API has no address")?;
            let address = address.split('/').next().unwrap_or_default();
            for _ in 0..IDLE_CONNECTIONS {
                tasks.spawn_on(idle(address.to_owned()), runtime);
            }
            for _ in 0..SLOW_HEADERS {
                tasks.spawn_on(slow_headers(address.to_owned()), runtime);
            }
        }
        tasks.spawn_on(transitions(platform.to_owned(), activity.users), runtime);
        Ok(Running { tasks, counts, started: Instant::now(), on_the_api })
    }

    /// Stops the activity. Fails if one of its tasks has failed.
    pub async fn end(mut self, figures: &mut Figures) -> anyhow::Result<()> {
        if let Some(ended) = self.tasks.try_join_next() {
            ended?.context("an activity ended early")?;
        }
        self.tasks.shutdown().await;
        if self.on_the_api {
            let per_second =
                |count: &AtomicU64| count.load(Ordering::Relaxed) as f64 / self.started.elapsed().as_secs_f64();
            figures.add("hostile requests, answered", "1/s", per_second(&self.counts.answered));
            figures.add("hostile requests, served", "1/s", per_second(&self.counts.served));
        }
        Ok(())
    }
}

fn steady(per_second: f64) -> tokio::time::Interval {
    let mut ticks = interval(Duration::from_secs_f64(1.0 / per_second));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Searches the attempt log for entries that do not exist. Does not wait for slow responses before the next request.
async fn search(request: reqwest::RequestBuilder, counts: Arc<Counts>) -> anyhow::Result<()> {
    let mut ticks = steady(f64::from(REQUESTS_PER_SECOND) / f64::from(REQUESTERS));
    loop {
        ticks.tick().await;
        let request = request.try_clone().context("a request without a body can be cloned")?;
        let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(2), request.send()).await else { continue };
        counts.answered.fetch_add(1, Ordering::Relaxed);
        if answer.status().is_success() {
            counts.served.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Holds an idle connection open, and opens another when it is closed.
async fn idle(address: String) -> anyhow::Result<()> {
    let mut ticks = steady(10.0);
    loop {
        ticks.tick().await;
        let Ok(mut stream) = TcpStream::connect(&address).await else { continue };
        let _ = stream.read(&mut [0; 1]).await;
    }
}

/// Sends a request that never ends, a byte at a time.
async fn slow_headers(address: String) -> anyhow::Result<()> {
    let mut ticks = interval(BYTE_EVERY);
    loop {
        ticks.tick().await;
        let Ok(mut stream) = TcpStream::connect(&address).await else { continue };
        let mut sent = stream.write_all(b"GET /api/public/webhooks HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").await;
        while sent.is_ok() {
            ticks.tick().await;
            sent = stream.write_all(b"x").await;
        }
    }
}

/// Moves rows of one user after the other.
async fn transitions(url: String, users: Range<u64>) -> anyhow::Result<()> {
    let writer = Writer::connect(&url).await?;
    let mut ticks = steady(f64::from(TRANSITIONS));
    for number in 0_u64.. {
        ticks.tick().await;
        let count = users.end - users.start;
        let (user, row) = (users.start + number % count, number / count % ROWS);
        writer.commit(user * ROW_ID_STRIDE + row, 1).await?;
    }
    Ok(())
}
