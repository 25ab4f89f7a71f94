//! The composition root: builds the stages, joins them by channels, watches over them and takes them down in order.

mod apart;
mod descriptors;
mod maintain;
mod receivers;
pub mod repair;
mod wiring;

pub use self::receivers::{check_url, look_up};

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use self::apart::Apart;
use crate::api::{self, ApiState, Ending, JwtVerifier, ServeLimits};
use crate::capture::CaptureError;
use crate::clock::SystemClock;
use crate::config::{CaptureMode, Config, Shutdown};
use crate::domain::delivery::lease_length;
use crate::enqueue::{Enqueue, EnqueueError};
use crate::handoff::{Handoff, handoff};
use crate::health::Health;
use crate::lookup::Lookups;
use crate::notify::{self, Mailer};
use crate::store::{Store, migrate};
use crate::traces::Tracer;
use crate::ui::{self, UiState};
use crate::vault::Vault;
use crate::{capture, deliver, observe, record, recover, telemetry, traces};

/// What one process does.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    pub capture: bool,
    pub deliver: bool,
    pub api: bool,
}

/// Under which name this module says how the process is.
const START_UP: &str = "start-up";
const SHUTDOWN: &str = "shutdown";
/// Connections to the store: one each for claims, targets, recording, maintenance and observation, the others for tests, recoveries
/// and notices.
const STORE_CONNECTIONS: usize = 8;
/// For the API and the user interface, whose requests wait for each other and never for these of delivery, nor the reverse.
const API_CONNECTIONS: usize = 8;
/// A page of the log takes milliseconds. What takes so long would keep others from their turn.
const API_STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// For enqueue, its lookups and what is told beside.
const CAPTURE_CONNECTIONS: usize = 4;
/// Reading changes and storing what follows from them take turns on it: between two threads they would wake each other.
const CAPTURE_THREADS: usize = 1;
/// Batches between capture and enqueue: few, since each may hold a thousand changes.
const BATCHES_AHEAD: usize = 4;
/// Answers between the dispatcher and the log.
pub const ANSWERS_AHEAD: usize = 1_024;
/// How long to stand back when another process has captured meanwhile.
const STAND_BACK: Duration = Duration::from_secs(2);
/// How long a start waits for the store's partitions.
const FIRST_MAINTENANCE: Duration = Duration::from_secs(5);
const METRICS_UPKEEP: Duration = Duration::from_secs(5);
/// Deadline for a response of the metrics listener: longer than the readiness check waits for the store.
const OPERATIONS_TIMEOUT: Duration = Duration::from_secs(30);
/// Beyond the drain time: for the log's last lines and the connections' ends.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(10);
/// For those who are told to give up to say what they leave.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Runs until a signal ends it, or one of its parts ends by itself.
pub async fn run(config: Config, roles: Roles) -> anyhow::Result<()> {
    config.require_master_key()?;
    descriptors::raise_limit(&config);
    let config = Arc::new(config);
    let settings = deliver::Settings::from_config(&config)?;
    let store_url = config.store_url()?.to_owned();
    let store = open_store(&store_url, STORE_CONNECTIONS).await?;
    let metrics = telemetry::install_metrics()?;
    let (tracer, exporter) = traces::start(&config)?;
    let app = App {
        store,
        capture_store: Store::open(&store_url, CAPTURE_CONNECTIONS)?,
        api_store: Store::open_for_requests(&store_url, API_CONNECTIONS, API_STATEMENT_TIMEOUT)?,
        vault: Arc::new(Vault::new(&config.secrets.master_key)?),
        sender: deliver::Sender::new(&settings, Arc::new(SystemClock))?,
        mailer: Mailer::new(&config)?,
        metrics,
        health: Health::default(),
        tracer,
        settings,
        config,
    };
    if roles.capture {
        match capture::preflight(&app.config.source, app.config.source_url()?, &app.store, &app.health).await {
            // Everything else goes on; capture waits for the repair.
            Err(capture::CaptureError::Gap(_)) => {}
            // Capture waits for what passes by itself, such as a primary that restarts, and warns of it.
            Err(error) if error.is_transient() => tracing::info!(%error, "starting all the same"),
            result => result?,
        }
    }
    let shutdown = CancellationToken::new();
    let mut tasks = Tasks {
        set: JoinSet::new(),
        shutdown: shutdown.clone(),
        closed: CancellationToken::new(),
        give_up: CancellationToken::new(),
    };
    tokio::spawn(end_on_signals(shutdown.clone()));
    let Shutdown { delay, drain } = app.config.shutdown;
    tokio::spawn(end_listeners(app.health.clone(), tasks.ending(), delay.0));
    app.start(roles, &mut tasks).await?;
    let result = tasks.join(delay.0 + drain.0 + SHUTDOWN_MARGIN).await;
    if let Some(exporter) = exporter {
        exporter.flush().await;
    }
    result
}

/// The store, where this build can work on its schema.
pub async fn open_store(url: &str, connections: usize) -> anyhow::Result<Store> {
    if let Some(misfit) = migrate::misfit(url).await? {
        anyhow::bail!("{misfit}");
    }
    Ok(Store::open(url, connections)?)
}

/// Balancers are told first, and served until they have taken notice.
async fn end_listeners(health: Health, ending: Ending, delay: Duration) {
    ending.announced.cancelled().await;
    health.report_unhealthy(SHUTDOWN, "ending");
    tokio::time::sleep(delay).await;
    ending.closed.cancel();
}

struct App {
    config: Arc<Config>,
    store: Store,
    /// Its connections are served by capture's threads.
    capture_store: Store,
    /// Used on behalf of clients alone.
    api_store: Store,
    vault: Arc<Vault>,
    settings: deliver::Settings,
    sender: deliver::Sender,
    mailer: Option<Mailer>,
    metrics: PrometheusHandle,
    health: Health,
    tracer: Tracer,
}

impl App {
    async fn start(&self, roles: Roles, tasks: &mut Tasks) -> anyhow::Result<()> {
        let shutdown = tasks.shutdown.clone();
        // Said before anybody can ask: ready means that every listener answers and that capture reads or stands by.
        self.health.report_unhealthy(START_UP, "not everything has started yet");
        if roles.capture {
            self.health.report_unhealthy(capture::STAGE, "not reading changes yet");
        }
        self.maintain(tasks).await;
        self.serve_operations(tasks).await?;
        self.observe(roles, tasks)?;
        if roles.api {
            self.serve_api(tasks).await?;
        }
        // The dispatcher ends when nothing can be handed to it any more.
        let fed = CancellationToken::new();
        let handoff = roles.deliver.then(|| self.start_delivery(tasks, fed.clone()));
        if roles.capture {
            let pipeline = CapturePipeline {
                config: self.config.clone(),
                store: self.capture_store.clone(),
                health: self.health.clone(),
                tracer: self.tracer.clone(),
                handoff,
                shutdown,
            };
            let starve = fed.drop_guard();
            // What is new shall not wait behind attempts under way.
            let threads = Apart::new("capture", CAPTURE_THREADS).context("threads for capture")?;
            let pipeline = threads.spawn(pipeline.run());
            tasks.spawn("capture", async move {
                let result = pipeline.await;
                drop((starve, threads));
                result?
            });
        } else {
            tasks.spawn("handoff", async move {
                let _held = handoff;
                shutdown.cancelled().await;
                fed.cancel();
                Ok(())
            });
        }
        self.health.report_healthy(START_UP);
        Ok(())
    }

    /// Waits for the first round, but not for ever: nothing that follows depends on it.
    async fn maintain(&self, tasks: &mut Tasks) {
        let (store, days, health) = (self.store.clone(), self.config.retention.days, self.health.clone());
        let (first_round, first_round_ended) = oneshot::channel();
        tasks.spawn("maintenance", maintain::run(store, days, health, first_round, tasks.shutdown.clone()));
        // Either way it goes on.
        let _ = tokio::time::timeout(FIRST_MAINTENANCE, first_round_ended).await;
    }

    fn start_delivery(&self, tasks: &mut Tasks, stop: CancellationToken) -> Handoff {
        let (handoff, fresh) = handoff();
        let (attempted, answers) = mpsc::channel(ANSWERS_AHEAD);
        let context = deliver::Context {
            store: self.store.clone(),
            vault: self.vault.clone(),
            sender: self.sender.clone(),
            settings: self.settings.clone(),
        };
        let (room, commits) = (handoff.room.clone(), handoff.commits());
        tasks.spawn("delivery", async move {
            deliver::run(context, fresh, room, attempted, stop).await;
            Ok(())
        });
        tasks.spawn("recovery", recover::run(self.store.clone(), tasks.shutdown.clone()));
        let notices = notify::Notifier {
            store: self.store.clone(),
            find_address: wiring::find_address(self.config.clone()),
            mailer: self.mailer.clone(),
        };
        tasks.spawn("notices", notify::run(notices, tasks.shutdown.clone()));
        let (store, schedule) = (self.store.clone(), self.config.delivery.schedule());
        let policy = self.config.disable.policy();
        let (tracer, give_up) = (self.tracer.clone(), tasks.give_up.clone());
        tasks.spawn("recording", async move {
            record::run(store, schedule, policy, answers, commits, tracer, give_up).await;
            Ok(())
        });
        handoff
    }

    async fn serve_api(&self, tasks: &mut Tasks) -> anyhow::Result<()> {
        let (store, vault, sender) = (self.store.clone(), self.vault.clone(), self.sender.clone());
        let receivers = receivers::Receivers::new(&self.settings, store, vault, sender, self.tracer.clone());
        let state = ApiState::new(&self.config, self.api_store.clone(), self.vault.clone(), Arc::new(receivers))
            .with_jwt(self.config.auth.jwt.as_ref().map(JwtVerifier::new).transpose()?);
        let listen = self.config.http.listen;
        let limits = ServeLimits::new(&self.config.http, state.request_timeout());
        let pages = ui::router(UiState::new(&self.config, state.clone()));
        let router = api::router(state).merge(pages);
        let server = api::serve(listen, "http.listen", router, limits, tasks.ending()).await?;
        tasks.spawn("api", async move { Ok(server.await?) });
        Ok(())
    }

    async fn serve_operations(&self, tasks: &mut Tasks) -> anyhow::Result<()> {
        let metrics = self.metrics.clone();
        let router = api::operations_router(
            Arc::new(move || metrics.render()),
            wiring::readiness(self.store.clone(), self.health.clone()),
        );
        let listen = self.config.http.metrics_listen;
        let limits = ServeLimits::new(&self.config.http, OPERATIONS_TIMEOUT);
        let server = api::serve(listen, "http.metrics_listen", router, limits, tasks.ending()).await?;
        tasks.spawn("operations", async move { Ok(server.await?) });
        let (metrics, shutdown) = (self.metrics.clone(), tasks.shutdown.clone());
        tasks.spawn("metrics", async move {
            let process = metrics_process::Collector::default();
            process.describe();
            process.collect();
            while shutdown.run_until_cancelled(tokio::time::sleep(METRICS_UPKEEP)).await.is_some() {
                process.collect();
                metrics.run_upkeep();
            }
            Ok(())
        });
        Ok(())
    }

    fn observe(&self, roles: Roles, tasks: &mut Tasks) -> anyhow::Result<()> {
        let shutdown = tasks.shutdown.clone();
        let (store, slot) = (self.store.clone(), self.config.source.slot.clone());
        let pools = vec![self.store.clone(), self.capture_store.clone(), self.api_store.clone()];
        tasks.spawn("observation", async move {
            observe::run(store, pools, slot, shutdown).await;
            Ok(())
        });
        // Where triggers capture there is no slot to look at.
        if roles.capture && self.config.source.capture == CaptureMode::Wal {
            let (url, shutdown) = (self.config.source_url()?.to_owned(), tasks.shutdown.clone());
            let slot = self.config.source.slot.clone();
            tasks.spawn("slot observation", async move {
                capture::observe::run(&url, &slot, &shutdown).await;
                Ok(())
            });
        }
        Ok(())
    }
}

/// Capture and enqueue live and end together.
struct CapturePipeline {
    config: Arc<Config>,
    store: Store,
    health: Health,
    tracer: Tracer,
    handoff: Option<Handoff>,
    shutdown: CancellationToken,
}

impl CapturePipeline {
    async fn run(self) -> anyhow::Result<()> {
        let mut said_gap = None;
        loop {
            match self.run_once().await {
                // What was lost stays lost until it is repaired. Meanwhile deliveries and the API go on.
                Err(error) if is_gap(&error) && !self.shutdown.is_cancelled() => {
                    self.health.report_unhealthy(capture::STAGE, "waiting for `walhook repair`");
                    if said_gap != Some(error.to_string()) {
                        tracing::error!(%error, "no changes are read until then");
                        said_gap = Some(error.to_string());
                    }
                    self.shutdown.run_until_cancelled(tokio::time::sleep(STAND_BACK)).await;
                }
                Err(error) if is_new_timeline(&error) && !self.shutdown.is_cancelled() => {
                    tracing::info!(reason = %error, "reading again from the checkpoint");
                }
                // The log is another process's now. Ours begins anew behind it: as a stand-by, until the slot is free.
                Err(error) if is_superseded(&error) && !self.shutdown.is_cancelled() => {
                    tracing::info!(reason = %error, "standing by");
                    tokio::time::sleep(STAND_BACK).await;
                }
                result => return result,
            }
        }
    }

    async fn run_once(&self) -> anyhow::Result<()> {
        let Config { source, delivery, .. } = &*self.config;
        let url = self.config.source_url()?;
        let (batches, changes) = mpsc::channel(BATCHES_AHEAD);
        let (durable, acknowledge) = watch::channel(None);
        let enqueue = Enqueue {
            store: self.store.clone(),
            lookups: Lookups::new(url, source, self.store.clone()),
            slot: source.slot.clone(),
            ledger: source.ledger,
            handoff: self.handoff.clone(),
            lease_length: lease_length(delivery.timeout.0),
            health: self.health.clone(),
            tracer: self.tracer.clone(),
            clock: SystemClock,
        };
        let enqueued = AbortOnDropHandle::new(tokio::spawn(enqueue.run(changes, durable, self.shutdown.clone())));
        let captured = capture::run(
            source,
            url,
            self.store.clone(),
            self.health.clone(),
            batches,
            acknowledge,
            self.shutdown.clone(),
        )
        .await;
        if let Err(error @ CaptureError::NewTimeline { .. }) = captured {
            // What was read on the old timeline is read again where it is part of the new one, and nothing where it is not.
            // Had its commit gone out already, the checkpoint will say so.
            return Err(error.into());
        }
        // When enqueue fails, its end of the channel closes and capture ends too; when capture ends, enqueue finishes what
        // is in the channel.
        enqueued.await??;
        Ok(captured?)
    }
}

fn is_gap(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CaptureError::Gap(_)))
}

fn is_new_timeline(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(CaptureError::NewTimeline { .. }))
}

fn is_superseded(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EnqueueError::Superseded(_)))
        || matches!(error.downcast_ref(), Some(capture::CaptureError::Superseded(_)))
}

/// The first signal asks for the end, the second does not ask.
async fn end_on_signals(shutdown: CancellationToken) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::error!("signals cannot be waited for: the process ends only when it is killed");
        return;
    };
    let mut next = async || tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} };
    next().await;
    tracing::info!("ending: requests under way may finish; a second signal ends at once");
    shutdown.cancel();
    next().await;
    std::process::exit(1);
}

/// The tasks of a process. When one of them ends before shutdown, all are asked to.
struct Tasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    shutdown: CancellationToken,
    /// Some time after shutdown: listeners take no connections any more.
    closed: CancellationToken,
    /// The time for an orderly end is over.
    give_up: CancellationToken,
}

impl Tasks {
    fn ending(&self) -> Ending {
        Ending { announced: self.shutdown.clone(), closed: self.closed.clone() }
    }

    fn spawn(&mut self, name: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// Waits for all, `grace` at most once shutdown has begun; the first error is the process's.
    async fn join(mut self, grace: Duration) -> anyhow::Result<()> {
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
                    tracing::warn!(?grace, "not everything ended in time; what was under way is tried again later");
                    self.give_up.cancel();
                    tokio::time::sleep(LAST_WORDS).await;
                    return result;
                }
            };
            let Some(ended) = ended else { return result };
            let (name, ended) = ended.unwrap_or_else(|panic| ("a task", Err(panic.into())));
            if !self.shutdown.is_cancelled() {
                tracing::error!(task = name, "ended before it was asked to: everything else ends too");
            }
            self.shutdown.cancel();
            result = result.and(ended);
        }
    }
}
