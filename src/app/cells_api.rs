//! `walhook run --roles api` for several cells: one listener, and for each cell a state of the API
//! with connections of its own.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::gauge;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::serve::{ApiParts, serve_api, serve_operations};
use super::supervisor::BackgroundTasks;
use super::{API_CONNECTIONS, API_STATEMENT_TIMEOUT, end, require_compatible_schema};
use crate::api::{MAX_REQUEST_TIME, PublishedKeys};
use crate::auth::CellRouters;
use crate::clock::SystemClock;
use crate::config::Config;
use crate::deliver;
use crate::domain::cell::Cell;
use crate::store::Store;
use crate::telemetry::health::Health;
use crate::telemetry::{self, Activity, traces};
use crate::vault::Vault;

/// How often each cell is looked at: a cell that is split, or back, is noticed as late.
const WATCH: Duration = Duration::from_secs(1);
/// The stage that readiness reports while no cell has answered yet.
const STAGE: &str = "cells";

/// Serves the API of all cells until a signal arrives.
pub async fn run(config: Config) -> anyhow::Result<()> {
    config.require_master_key()?;
    super::descriptors::raise_limit(&config);

    let config = Arc::new(config);
    let settings = deliver::Settings::from_config(&config)?;
    let metrics = telemetry::install_metrics()?;
    let (tracer, exporter) = traces::start(&config)?;

    let parts = ApiParts {
        vault: Arc::new(Vault::new(&config.secrets.master_key)?),
        sender: deliver::Sender::new(&settings, Arc::new(SystemClock))?,
        config: config.clone(),
        settings,
        tracer,
    };

    let mut tasks = BackgroundTasks::new();
    let health = Health::default();
    tasks.close_listeners_after(config.shutdown.delay.0, health.clone());
    health.report_unhealthy(STAGE, "no cell has answered yet");

    let routers = CellRouters::new(&config);
    let timeout = MAX_REQUEST_TIME + config.delivery.timeout.0;
    serve_api(&config.http, routers.clone().router(), timeout, &mut tasks).await?;

    let reported = health.clone();
    let readiness = Arc::new(move || {
        let reasons = reported.reasons();
        Box::pin(async move { reasons }) as _
    });
    serve_operations(&config.http, metrics, readiness, &mut tasks).await?;

    let published_keys = PublishedKeys::default();
    for name in config.cells.stores.keys() {
        let url = config.cell_url(name)?;
        let served = ServedCell {
            name: name.clone(),
            url: url.to_owned(),
            probe: Store::open(url, 1)?,
            parts: parts.clone(),
            routers: routers.clone(),
            published_keys: published_keys.clone(),
            health: health.clone(),
            closed: tasks.ending().closed,
            current: None,
        };
        tasks.spawn("cell", served.run(tasks.shutdown.clone()));
    }

    end(tasks, &config.shutdown, exporter).await
}

/// A cell whose users are served.
struct ServedCell {
    name: String,
    url: String,
    /// Its session does not name the process: it remains while the cell is split.
    probe: Store,
    parts: ApiParts,
    routers: CellRouters,
    published_keys: PublishedKeys,
    health: Health,
    /// Cancelled when the listener closes.
    closed: CancellationToken,
    /// The cell as it is served now, and what ends its streams.
    current: Option<(Cell, DropGuard)>,
}

impl ServedCell {
    async fn run(mut self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let answering = Activity::new("serving the users of a cell");

        loop {
            let looked = self.look().await;
            let is_up = f64::from(looked.is_ok());
            gauge!(telemetry::CELL_UP, "cell" => self.name.clone()).set(is_up);

            match looked {
                Ok(()) => answering.succeeded(),
                Err(error) if answering.starts_failing() => {
                    tracing::warn!(cell = self.name, %error, "the users of a cell cannot be served now");
                }
                Err(_) => {}
            }

            let pause = tokio::time::sleep(WATCH);
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return Ok(());
            }
        }
    }

    /// Serves the cell as its store has it. A store that does not answer changes nothing: its users
    /// get a 503 by its own statements.
    async fn look(&mut self) -> anyhow::Result<()> {
        let found = match self.probe.own_cell(Some(&self.name)).await? {
            Ok(found) => found,
            Err(fault) => {
                self.close();
                return Err(fault.into());
            }
        };

        let is_served = |(served, _): &(Cell, DropGuard)| Some(served) == found.as_ref();
        if self.current.as_ref().is_some_and(is_served) {
            return Ok(());
        }

        self.close();
        require_compatible_schema(&self.url).await?;
        let store = Store::open_for_api(&self.url, API_CONNECTIONS, API_STATEMENT_TIMEOUT)?;

        // Again, over a connection that `walhook cells split` waits for from now on.
        let Some(cell) = store.own_cell(Some(&self.name)).await?? else {
            return Ok(());
        };

        let closed = self.closed.child_token();
        let state = self.parts.state(store.clone(), store, closed.clone())?;
        let state = state
            .with_shards(Some(Arc::new(OnceLock::from(cell.shards))))
            .with_published_keys(self.published_keys.clone());

        let manage = state.manage().clone();
        self.published_keys.set(&self.name, Some(manage));
        self.routers
            .set(&self.name, cell.shards, self.parts.router(state));
        self.health.report_healthy(STAGE);
        tracing::info!(cell = self.name, shards = %cell.shards, "serving the users of a cell");
        self.current = Some((cell, closed.drop_guard()));

        Ok(())
    }

    /// Ends the streams of the cell's users, and its connections with the last request.
    fn close(&mut self) {
        self.routers.remove(&self.name);
        self.published_keys.set(&self.name, None);
        self.current = None;
    }
}
