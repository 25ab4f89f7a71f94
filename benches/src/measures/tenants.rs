//! What other tenants do in `hostile`: tasks that run until they are stopped.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::clients::SlowClients;
use crate::figures::Figures;
use crate::platform::{ROW_ID_STRIDE, Writer, micros_now};
use crate::sidecar::{Sidecar, token};
use crate::wait::steady;

/// Ten times the default of `limits.requests_per_second`.
const REQUESTS_PER_SECOND: u32 = 1_000;
/// Concurrent requests of the hostile tenant: enough for the rate while half a second passes before
/// each rejection.
const REQUESTERS: u32 = 512;
/// Transitions per second, each delivered to ten receivers.
const TRANSITIONS: u32 = 50;
/// Rows per user, which move in turn.
pub const ROWS: u64 = 100;

/// What the tenants do.
pub struct Activity {
    /// The webhook whose attempt log is searched over the API, while slow clients connect to it.
    /// `None` if the API is left alone.
    pub attacked: Option<String>,
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
    slow_clients: Option<SlowClients>,
    counts: Arc<Counts>,
    started: Instant,
    /// When the first transitions were committed, in microseconds since 1970.
    pub committed_at: u64,
}

impl Running {
    /// Commits a transition of each user in one transaction, so that each of their webhooks has a
    /// delivery, and starts the rest of the activity on `runtime`.
    pub async fn start(
        activity: Activity,
        sidecar: &Sidecar,
        platform: &str,
        runtime: &Handle,
    ) -> anyhow::Result<Running> {
        let Activity { attacked, users } = activity;
        let mut tasks = JoinSet::new();
        let counts = Arc::new(Counts::default());
        let mut slow_clients = None;

        if let Some(webhook) = attacked {
            slow_clients = Some(SlowClients::start(sidecar, runtime)?);
            let url = format!(
                "{}/webhooks/{webhook}/logs?event=payment.statement_ready&outcome=failed",
                sidecar.api()
            );
            let token = token(users.start)?;
            let client = reqwest::Client::builder().no_proxy().build()?;

            for _ in 0..REQUESTERS {
                tasks.spawn_on(
                    search(client.get(&url).bearer_auth(&token), counts.clone()),
                    runtime,
                );
            }
        }

        let committed_at = micros_now();

        let url = platform.to_owned();
        let moved = users.clone();
        runtime
            .spawn(async move { move_all(&url, moved).await })
            .await??;
        tasks.spawn_on(transitions(platform.to_owned(), users), runtime);

        let started = Instant::now();

        Ok(Running {
            tasks,
            slow_clients,
            counts,
            started,
            committed_at,
        })
    }

    /// Stops the activity. Fails if one of its tasks has failed.
    pub async fn end(mut self, figures: &mut Figures, sidecar: &Sidecar) -> anyhow::Result<()> {
        if let Some(slow_clients) = self.slow_clients {
            slow_clients
                .end(figures, sidecar)
                .await
                .context("slow API clients")?;

            let per_second = |count: &AtomicU64| {
                count.load(Ordering::Relaxed) as f64 / self.started.elapsed().as_secs_f64()
            };

            figures.add(
                "hostile requests, answered",
                "1/s",
                per_second(&self.counts.answered),
            );
            figures.add(
                "hostile requests, served",
                "1/s",
                per_second(&self.counts.served),
            );
        }

        if let Some(ended) = self.tasks.try_join_next() {
            ended?.context("an activity ended early")?;
        }

        self.tasks.shutdown().await;

        Ok(())
    }
}

/// Searches the attempt log for entries that do not exist. Does not wait for slow responses before
/// the next request.
async fn search(request: reqwest::RequestBuilder, counts: Arc<Counts>) -> anyhow::Result<()> {
    let mut ticks = steady(f64::from(REQUESTS_PER_SECOND) / f64::from(REQUESTERS));

    loop {
        ticks.tick().await;
        let request = request
            .try_clone()
            .context("a request without a body can be cloned")?;
        let Ok(Ok(answer)) = tokio::time::timeout(Duration::from_secs(2), request.send()).await
        else {
            continue;
        };

        counts.answered.fetch_add(1, Ordering::Relaxed);

        if answer.status().is_success() {
            counts.served.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Moves the last row of each user at once.
async fn move_all(url: &str, users: Range<u64>) -> anyhow::Result<()> {
    let rows: Vec<i64> = users
        .map(|user| (user * ROW_ID_STRIDE + ROWS - 1) as i64)
        .collect();
    Writer::connect(url).await?.commit_all(&rows).await
}

/// Moves rows of one user after the other.
async fn transitions(url: String, users: Range<u64>) -> anyhow::Result<()> {
    let writer = Writer::connect(&url).await?;
    let mut ticks = steady(f64::from(TRANSITIONS));

    for number in 0_u64.. {
        ticks.tick().await;
        let count = users.end - users.start;
        let user = users.start + number % count;
        let row = number / count % ROWS;
        writer.commit(user * ROW_ID_STRIDE + row, 1).await?;
    }

    Ok(())
}
