//! A polite API client in `hostile`: reads the webhooks and the delivery log of the measured user a
//! few times per second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::figures::{Figures, quantile};
use crate::sidecar::{Sidecar, token};
use crate::wait::steady;

/// Requests per second on a connection that is kept, and as many on new connections. A twentieth of
/// `limits.requests_per_second` each: enough for a p99 of ten seconds.
const REQUESTS_PER_SECOND: f64 = 5.0;
/// Longer than a client would wait.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The results so far.
#[derive(Default)]
struct Answers {
    /// In milliseconds. A failed request counts as one that took until the timeout.
    took: Vec<f64>,
    failed: u64,
}

/// A running client.
pub struct PoliteClient {
    tasks: JoinSet<anyhow::Result<()>>,
    answers: Arc<Mutex<Answers>>,
    is_ending: Arc<AtomicBool>,
}

impl PoliteClient {
    /// Starts it on the measured processors: it waits for the API as the measured webhook waits for
    /// its deliveries.
    pub fn start(user: u64, webhook: Uuid, sidecar: &Sidecar) -> anyhow::Result<PoliteClient> {
        let answers = Arc::<Mutex<Answers>>::default();
        let is_ending = Arc::default();
        let mut tasks = JoinSet::new();
        let token = token(user)?;
        let builder = || reqwest::Client::builder().no_proxy().timeout(TIMEOUT);
        let list = format!("{}/webhooks", sidecar.api());

        for client in [
            builder().build()?,
            builder().pool_max_idle_per_host(0).build()?,
        ] {
            let log = format!("{list}/{webhook}/logs");
            let requests = [list.clone(), log].map(|url| client.get(url).bearer_auth(&token));
            tasks.spawn(ask(requests, answers.clone(), Arc::clone(&is_ending)));
        }

        Ok(PoliteClient {
            tasks,
            answers,
            is_ending,
        })
    }

    /// Waits for the requests in progress, and records the p99 and the failed requests.
    pub async fn end(mut self, figures: &mut Figures, case: &str) -> anyhow::Result<()> {
        self.is_ending.store(true, Ordering::Relaxed);

        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }

        let mut answers = self.answers.lock().expect("no holder of this lock panics");
        figures.add(p99(case), "ms", quantile(&mut answers.took, 0.99));

        let failed = 100.0 * answers.failed as f64 / answers.took.len() as f64;
        figures.add(format!("API client {case}, failed requests"), "%", failed);

        Ok(())
    }
}

/// The name of the figure of a case.
pub fn p99(case: &str) -> String {
    format!("API client {case}, p99")
}

/// Sends the requests in turn.
async fn ask(
    requests: [reqwest::RequestBuilder; 2],
    answers: Arc<Mutex<Answers>>,
    is_ending: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let mut ticks = steady(REQUESTS_PER_SECOND);

    for request in requests.iter().cycle() {
        ticks.tick().await;

        if is_ending.load(Ordering::Relaxed) {
            break;
        }

        let request = request
            .try_clone()
            .context("a request without a body can be cloned")?;
        let started = Instant::now();
        let answer = async { request.send().await?.error_for_status()?.bytes().await };
        let is_answered = answer.await.is_ok();
        let took = if is_answered {
            started.elapsed()
        } else {
            TIMEOUT
        };

        let mut answers = answers.lock().expect("no holder of this lock panics");
        answers.took.push(took.as_secs_f64() * 1e3);
        answers.failed += u64::from(!is_answered);
    }

    Ok(())
}
