//! Supervision of a process's background tasks: they run until one of them ends or a signal
//! arrives, then shut down in order.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::http::Ending;
use crate::telemetry::health::Health;

/// The name of this stage in readiness.
const STAGE: &str = "shutdown";
/// How long tasks that overran the grace period have to log what they drop.
const FINAL_LOGGING: Duration = Duration::from_millis(100);

/// The background tasks of a process. When one of them ends unexpectedly, shutdown starts.
pub struct BackgroundTasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    /// Cancelled when shutdown starts. Tasks then finish their current work and end.
    pub shutdown: CancellationToken,
    /// Cancelled some time after shutdown: listeners accept no more connections.
    closed: CancellationToken,
    /// Cancelled when the grace period is over: tasks drop their work.
    pub give_up: CancellationToken,
}

impl BackgroundTasks {
    /// Shutdown starts with the first SIGTERM or SIGINT.
    pub fn new() -> BackgroundTasks {
        let shutdown = CancellationToken::new();
        tokio::spawn(cancel_on_signal(shutdown.clone()));

        BackgroundTasks {
            set: JoinSet::new(),
            shutdown,
            closed: CancellationToken::new(),
            give_up: CancellationToken::new(),
        }
    }

    /// Returns the signals by which a listener ends.
    pub fn ending(&self) -> Ending {
        Ending {
            announced: self.shutdown.clone(),
            closed: self.closed.clone(),
        }
    }

    /// At shutdown, reports the process unready at once, and closes the listeners after `delay`:
    /// load balancers need that long to stop sending requests.
    pub fn close_listeners_after(&self, delay: Duration, health: Health) {
        let ending = self.ending();
        tokio::spawn(async move {
            ending.announced.cancelled().await;
            health.report_unhealthy(STAGE, "shutting down");
            tokio::time::sleep(delay).await;
            ending.closed.cancel();
        });
    }

    /// Starts a task. `name` is for the server log.
    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// Waits for all tasks, but at most `grace` after shutdown has started. Returns the first error
    /// of a task.
    pub async fn join(mut self, grace: Duration) -> anyhow::Result<()> {
        let mut result = Ok(());
        let overdue = async {
            self.shutdown.cancelled().await;
            tokio::time::sleep(grace).await;
        };

        tokio::pin!(overdue);

        loop {
            let ended = tokio::select! {
                ended = self.set.join_next() => ended,
                () = &mut overdue => {
                    tracing::warn!(?grace, "shutdown took too long: unfinished work is dropped, and retried later");
                    self.give_up.cancel();
                    tokio::time::sleep(FINAL_LOGGING).await;
                    return result;
                }
            };

            let Some(ended) = ended else { return result };
            let (name, ended) = ended.unwrap_or_else(|panic| ("a task", Err(panic.into())));

            if !self.shutdown.is_cancelled() {
                tracing::error!(task = name, "a task ended unexpectedly: shutting down");
            }

            self.shutdown.cancel();
            result = result.and(ended);
        }
    }
}

/// Cancels `shutdown` at the first signal, and exits at the second.
async fn cancel_on_signal(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};

    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        tracing::error!("cannot listen for signals: only SIGKILL can end this process");
        return;
    };

    let mut next =
        async || tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} };
    next().await;
    tracing::info!("shutting down: requests in flight may finish; a second signal exits at once");
    shutdown.cancel();
    next().await;
    std::process::exit(1);
}
