//! The composition root: builds the stages and connects them by channels.

pub mod cells;
mod cells_api;
mod dedicated;
mod descriptors;
mod observe;
mod pipeline;
mod receivers;
pub mod repair;
pub mod retention;
mod serve;
pub mod status;
mod supervisor;
pub mod unrouted;
mod wiring;

pub use self::receivers::{check_url, look_up};

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use self::dedicated::{DedicatedRuntime, Priority};
use self::pipeline::CapturePipeline;
use self::serve::{ApiParts, serve_api, serve_operations};
use self::supervisor::BackgroundTasks;
use crate::clock::SystemClock;
use crate::config::{CaptureMode, Config, Shutdown};
use crate::domain::cell::{Cell, Shards};
use crate::domain::delivery::lease_length;
use crate::handoff::{Handoff, handoff};
use crate::manage::Manage;
use crate::notify::operator::OperatorNotifier;
use crate::notify::{self, Mailer};
use crate::retry::Backoff;
use crate::store::{Store, StoreError, migrate};
use crate::telemetry::Activity;
use crate::telemetry::health::Health;
use crate::telemetry::traces::Tracer;
use crate::telemetry::{self, traces};
use crate::vault::Vault;
use crate::{capture, deliver, jobs, record, tls};

/// The parts of Walhook that this process runs.
#[derive(Clone, Copy, Debug)]
pub struct Roles {
    pub capture: bool,
    pub deliver: bool,
    pub api: bool,
}

impl Roles {
    const fn is_api_alone(self) -> bool {
        self.api && !self.capture && !self.deliver
    }

    /// Returns the names, as `--roles` takes them.
    fn names(self) -> String {
        let all = [
            ("capture", self.capture),
            ("deliver", self.deliver),
            ("api", self.api),
        ];
        let names = all.into_iter().filter(|(_, has)| *has);
        names.map(|(name, _)| name).collect::<Vec<_>>().join(",")
    }
}

/// The stage that readiness reports until everything has started.
const START_UP: &str = "start-up";
/// Connections to the store: one each for claims, targets, recording, maintenance and observation;
/// the others for tests, recoveries and notices.
const STORE_CONNECTIONS: usize = 8;
/// For the API and the web UI. A separate pool, so that requests and deliveries never wait for each
/// other's connections.
const API_CONNECTIONS: usize = 8;
/// A page of the attempt log takes milliseconds. A statement that takes this long would keep a
/// connection from other requests.
const API_STATEMENT_TIMEOUT: Duration = Duration::from_secs(5);
/// For enqueue, its lookups, and the positions and gaps that capture stores.
const CAPTURE_CONNECTIONS: usize = 4;
/// Capture and enqueue take turns. On two threads they would wake each other for every batch.
const CAPTURE_THREADS: usize = 1;
/// Capacity of the channel of answers from the dispatcher to the attempt log.
pub const ANSWERS_AHEAD: usize = 1_024;
/// Between two attempts of start-up to reach the store.
const STORE_RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Beyond the drain time: for recording the last attempts and closing connections.
const SHUTDOWN_MARGIN: Duration = Duration::from_secs(10);

static WAITING_FOR_STORE: Activity = Activity::new("connecting to the store");

/// Runs until a signal arrives or one of the background tasks ends.
pub async fn run(config: Config, roles: Roles) -> anyhow::Result<()> {
    if roles.is_api_alone() && !config.cells.stores.is_empty() {
        return cells_api::run(config).await;
    }

    config.require_master_key()?;
    descriptors::raise_limit(&config);

    let config = Arc::new(config);
    let settings = deliver::Settings::from_config(&config)?;
    let store_url = config.store_url()?.to_owned();

    // Reads some hundred files, while the store answers.
    tokio::task::spawn_blocking(tls::system_roots);
    let store_answers = accept_store(&store_url).await?;
    let metrics = telemetry::install_metrics()?;
    let (tracer, exporter) = traces::start(&config)?;

    let app = App {
        store: Store::open_for_process(&store_url, STORE_CONNECTIONS, &roles.names())?,
        capture_store: Store::open_for_service(&store_url, CAPTURE_CONNECTIONS)?,
        api_store: Store::open_for_requests(&store_url, API_CONNECTIONS, API_STATEMENT_TIMEOUT)?,
        vault: Arc::new(Vault::new(&config.secrets.master_key)?),
        sender: deliver::Sender::new(&settings, Arc::new(SystemClock))?,
        shards: Arc::default(),
        mailer: Mailer::new(&config)?,
        metrics,
        health: Health::default(),
        tracer,
        settings,
        config,
    };

    let mut tasks = BackgroundTasks::new();

    tasks.close_listeners_after(app.config.shutdown.delay.0, app.health.clone());
    app.listen(roles, &mut tasks).await?;

    if store_answers || app.wait_for_store(&tasks.shutdown).await? {
        app.start(roles, &mut tasks).await?;
    }

    end(tasks, &app.config.shutdown, exporter).await
}

/// Waits until the tasks have ended, and sends the last traces.
async fn end(
    tasks: BackgroundTasks,
    Shutdown { delay, drain }: &Shutdown,
    exporter: Option<traces::Exporter>,
) -> anyhow::Result<()> {
    let result = tasks.join(delay.0 + drain.0 + SHUTDOWN_MARGIN).await;

    if let Some(exporter) = exporter {
        exporter.flush().await;
    }

    if result.is_ok() {
        tracing::info!("shut down");
    }

    result
}

/// Fails if this build cannot work on the store. Returns false if the store does not answer now.
async fn accept_store(url: &str) -> anyhow::Result<bool> {
    match require_compatible_schema(url).await {
        Err(error) if error.downcast_ref().is_some_and(StoreError::is_transient) => {
            WAITING_FOR_STORE.failed(&error);
            Ok(false)
        }
        result => result.map(|()| true),
    }
}

/// Opens the store for a command. Fails if this build cannot work on its schema.
pub async fn open_store(url: &str, connections: usize) -> anyhow::Result<Store> {
    require_compatible_schema(url).await?;
    Ok(Store::open(url, connections)?)
}

/// Opens the use cases of webhooks for a command.
pub async fn open_manage(config: &Config) -> anyhow::Result<Manage> {
    let store = open_store(config.store_url()?, 1).await?;
    let settings = deliver::Settings::from_config(config)?;
    let vault = Arc::new(Vault::new(&config.secrets.master_key)?);
    let sender = deliver::Sender::new(&settings, Arc::new(SystemClock))?;
    let receivers = receivers::Receivers::new(
        &settings,
        store.clone(),
        vault.clone(),
        sender,
        Tracer::default(),
    );

    Ok(Manage::new(config, store, vault, Arc::new(receivers)))
}

async fn require_compatible_schema(url: &str) -> anyhow::Result<()> {
    match migrate::incompatibility(url).await? {
        Some(problem) => anyhow::bail!("{problem}"),
        None => Ok(()),
    }
}

struct App {
    config: Arc<Config>,
    store: Store,
    /// For the threads of capture: a connection is served by the runtime that opened it.
    capture_store: Store,
    /// For requests of clients only.
    api_store: Store,
    vault: Arc<Vault>,
    settings: deliver::Settings,
    sender: deliver::Sender,
    /// The shards of the store's users, if it is a cell.
    shards: Arc<OnceLock<Shards>>,
    mailer: Option<Mailer>,
    metrics: PrometheusHandle,
    health: Health,
    tracer: Tracer,
}

impl App {
    /// Starts the listeners. Without a store, the API responds with 503.
    async fn listen(&self, roles: Roles, tasks: &mut BackgroundTasks) -> anyhow::Result<()> {
        // Reported before the listener starts: ready means that every listener answers and that
        // capture reads or stands by.
        self.health
            .report_unhealthy(START_UP, "not everything has started yet");

        if roles.capture {
            self.health
                .report_unhealthy(capture::STAGE, "not reading changes yet");
        }

        if roles.api {
            self.serve_api(tasks).await?;
        }

        let readiness = wiring::readiness(self.store.clone(), self.health.clone());
        serve_operations(&self.config.http, self.metrics.clone(), readiness, tasks).await
    }

    /// Waits until the store answers. Returns false if shutdown starts first.
    async fn wait_for_store(&self, shutdown: &CancellationToken) -> anyhow::Result<bool> {
        let url = self.config.store_url()?;
        let mut retries = STORE_RETRIES;

        while retries.wait_unless(shutdown).await {
            if accept_store(url).await? {
                WAITING_FOR_STORE.succeeded();
                return Ok(true);
            }
        }

        Ok(false)
    }

    /// Fails if the role `capture` cannot work and waiting would not help.
    async fn prepare_capture(&self, roles: Roles) -> anyhow::Result<()> {
        if !roles.capture {
            return Ok(());
        }

        let checked = capture::preflight(
            &self.config.source,
            capture::Origin {
                url: self.config.capture_url()?,
                cell: self.config.cells.name.as_deref(),
            },
            &self.store,
        );

        match checked.await {
            // Capture retries transient faults, such as a restart of the primary, and logs a
            // warning.
            Err(error) if error.is_transient() => {
                tracing::info!(%error, "starting although the primary is not ready")
            }
            result => result?,
        }

        Ok(())
    }

    /// Starts the tasks of `roles`, and those that every process runs.
    async fn start(&self, roles: Roles, tasks: &mut BackgroundTasks) -> anyhow::Result<()> {
        let shutdown = tasks.shutdown.clone();

        // After the session that `walhook cells split` sees as one of this process was opened.
        if let Some(own) = self.own_cell().await? {
            let _ = self.shards.set(own.shards);
            let watch = cells::watch(self.store.clone(), own, shutdown.clone());
            tasks.spawn("cell", watch);
        }

        self.prepare_capture(roles).await?;
        self.observe(roles, tasks)?;

        // Stops the dispatcher, once nothing can be handed to it any more.
        let handoff_ended = CancellationToken::new();
        let handoff = roles
            .deliver
            .then(|| self.start_delivery(tasks, handoff_ended.clone()));

        if roles.deliver {
            self.start_operator_notices(tasks)?;
        }

        if roles.capture {
            let pipeline = CapturePipeline {
                config: self.config.clone(),
                store: self.capture_store.clone(),
                health: self.health.clone(),
                tracer: self.tracer.clone(),
                handoff,
                shutdown,
            };

            let end_handoff = handoff_ended.drop_guard();

            // New changes must not queue behind requests in flight.
            let runtime = DedicatedRuntime::new("capture", CAPTURE_THREADS, Priority::Normal)
                .context("threads for capture")?;
            let pipeline = runtime.spawn(pipeline.run());
            tasks.spawn("capture", async move {
                let result = pipeline.await;
                drop((end_handoff, runtime));
                result?
            });
        } else {
            tasks.spawn("handoff", async move {
                let _held = handoff;
                shutdown.cancelled().await;
                handoff_ended.cancel();
                Ok(())
            });
        }

        // Last: its many statements would delay the first event.
        tasks.spawn(
            "maintenance",
            retention::run(
                self.store.clone(),
                self.config.retention.days,
                self.health.clone(),
                tasks.shutdown.clone(),
            ),
        );

        self.health.report_healthy(START_UP);
        Ok(())
    }

    /// Returns the cell that the store is. Fails if it is another one than that of the settings.
    async fn own_cell(&self) -> anyhow::Result<Option<Cell>> {
        // A log's store has the rows of all its cells.
        if self.config.source.capture != CaptureMode::Log {
            return Ok(None);
        }

        Ok(self
            .store
            .own_cell(self.config.cells.name.as_deref())
            .await??)
    }

    /// Starts the tasks of the role `deliver`. `stop` stops the dispatcher.
    fn start_delivery(&self, tasks: &mut BackgroundTasks, stop: CancellationToken) -> Handoff {
        let (handoff, fresh) = handoff();
        let (attempted, answers) = mpsc::channel(ANSWERS_AHEAD);
        let context = deliver::Context {
            store: self.store.clone(),
            vault: self.vault.clone(),
            sender: self.sender.clone(),
            settings: self.settings.clone(),
        };

        let budget = handoff.budget.clone();
        tasks.spawn(
            "delivery",
            deliver::run(context, fresh, budget, attempted, stop).map(Ok),
        );
        tasks.spawn(
            "recovery",
            jobs::run(self.store.clone(), tasks.shutdown.clone()),
        );

        let notices = notify::Notifier {
            store: self.store.clone(),
            find_address: wiring::find_address(self.config.clone()),
            mailer: self.mailer.clone(),
        };

        tasks.spawn("notices", notify::run(notices, tasks.shutdown.clone()));
        let store = self.store.clone();
        let schedule = self.config.delivery.schedule();
        let policy = self.config.disable.policy();
        let tracer = self.tracer.clone();
        let give_up = tasks.give_up.clone();
        let lease_length = lease_length(self.settings.timeout);
        let promotion = record::Promotion {
            handoff: handoff.clone(),
            lease_length,
        };

        tasks.spawn(
            "recording",
            record::run(store, schedule, policy, promotion, answers, tracer, give_up).map(Ok),
        );
        let search = record::promote_stranded(self.store.clone(), tasks.shutdown.clone());

        tasks.spawn("stranded deliveries", search.map(Ok));
        let cancellation = record::cancel_inactive(self.store.clone(), tasks.shutdown.clone());
        tasks.spawn("cancellation", cancellation.map(Ok));
        let unpacking = record::unpack_old(self.store.clone(), tasks.shutdown.clone());
        tasks.spawn("unpacking", unpacking.map(Ok));

        handoff
    }

    /// Starts the task that notifies the operator's webhooks.
    fn start_operator_notices(&self, tasks: &mut BackgroundTasks) -> anyhow::Result<()> {
        let operator = &self.config.operator;
        let secret = operator.secret.clone().unwrap_or_default();
        let notifier = OperatorNotifier {
            store: self.store.clone(),
            urls: operator.webhooks.clone(),
            post: wiring::post_occurrence(&self.settings, &secret)?,
            schedule: self.config.delivery.schedule(),
            timeout: self.settings.timeout,
        };

        tasks.spawn("operator notices", notifier.run(tasks.shutdown.clone()));
        Ok(())
    }

    async fn serve_api(&self, tasks: &mut BackgroundTasks) -> anyhow::Result<()> {
        let parts = ApiParts {
            config: self.config.clone(),
            vault: self.vault.clone(),
            settings: self.settings.clone(),
            sender: self.sender.clone(),
            tracer: self.tracer.clone(),
        };
        let closed = tasks.ending().closed;
        let state = parts.state(self.store.clone(), self.api_store.clone(), closed)?;
        let is_cell = self.config.cells.name.is_some();
        let state = state.with_shards(is_cell.then(|| self.shards.clone()));
        let timeout = state.request_timeout();

        serve_api(&self.config.http, parts.router(state), timeout, tasks).await
    }

    fn observe(&self, roles: Roles, tasks: &mut BackgroundTasks) -> anyhow::Result<()> {
        let shutdown = tasks.shutdown.clone();
        let store = self.store.clone();
        let slot = self.config.source.slot.clone();
        let pools = vec![
            self.store.clone(),
            self.capture_store.clone(),
            self.api_store.clone(),
        ];

        tasks.spawn(
            "observation",
            observe::sample_store(store, pools, slot, shutdown).map(Ok),
        );

        // Trigger capture has no slot.
        if roles.capture && self.config.source.capture == CaptureMode::Wal {
            let url = self.config.source_url()?.to_owned();
            let shutdown = tasks.shutdown.clone();
            let slot = self.config.source.slot.clone();

            tasks.spawn(
                "slot observation",
                observe::sample_slot(url, slot, shutdown).map(Ok),
            );
        }

        Ok(())
    }
}
