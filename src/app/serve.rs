//! The listeners of a process: the API with the web UI, and the operators' endpoints.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

use super::dedicated::{DedicatedRuntime, Priority};
use super::receivers;
use super::supervisor::BackgroundTasks;
use crate::api::{self, ApiState, Readiness};
use crate::auth::JwtVerifier;
use crate::config::{Config, Http};
use crate::deliver;
use crate::http::{self, Router, ServeLimits};
use crate::manage::Manage;
use crate::store::Store;
use crate::telemetry::traces::Tracer;
use crate::ui::{self, UiState};
use crate::vault::Vault;

/// For the API and the web UI, at a low priority, so that no client's requests take processor time
/// from deliveries.
const API_THREADS: usize = 2;
/// Until then, histograms keep each sample: megabytes at tens of thousands of deliveries per
/// second.
const METRICS_UPKEEP: Duration = Duration::from_secs(1);
/// Deadline for a response of the metrics listener: longer than the readiness check waits for the
/// store.
const OPERATIONS_TIMEOUT: Duration = Duration::from_secs(30);

/// What the API of a store is built from, besides the store.
#[derive(Clone)]
pub struct ApiParts {
    pub config: Arc<Config>,
    pub vault: Arc<Vault>,
    pub settings: deliver::Settings,
    pub sender: deliver::Sender,
    pub tracer: Tracer,
}

impl ApiParts {
    /// Returns the state of the API of a store. `store` is for tests of webhooks, `requests` for
    /// everything else. `closed` ends streams.
    pub fn state(
        &self,
        store: Store,
        requests: Store,
        closed: CancellationToken,
    ) -> anyhow::Result<ApiState> {
        let vault = self.vault.clone();
        let sender = self.sender.clone();
        let receivers =
            receivers::Receivers::new(&self.settings, store, vault, sender, self.tracer.clone());
        let vault = self.vault.clone();
        let manage = Manage::new(&self.config, requests, vault, Arc::new(receivers));

        let jwt = self.config.auth.jwt.as_ref();
        let verifier = jwt.map(JwtVerifier::new).transpose()?;
        Ok(ApiState::new(&self.config, manage, verifier).with_closed(closed))
    }

    /// Returns the router of the API and the web UI.
    pub fn router(&self, state: ApiState) -> Router {
        let pages = ui::router(UiState::new(&self.config, state.clone()));
        api::router(state).merge(pages)
    }
}

/// Serves the API and the web UI.
pub async fn serve_api(
    config: &Http,
    router: Router,
    timeout: Duration,
    tasks: &mut BackgroundTasks,
) -> anyhow::Result<()> {
    let limits = ServeLimits::new(config, timeout);
    let runtime =
        DedicatedRuntime::new("api", API_THREADS, Priority::Low).context("threads for the API")?;

    // A listener and a connection are served by the runtime that opened them.
    let server = runtime
        .spawn(http::serve(
            config.listen,
            "http.listen",
            router,
            limits,
            tasks.ending(),
        ))
        .await??;

    let server = runtime.spawn(server);
    tasks.spawn("api", async move {
        let result = server.await;
        drop(runtime);
        Ok(result??)
    });

    Ok(())
}

/// Serves metrics and health checks, and keeps the metrics up to date.
pub async fn serve_operations(
    config: &Http,
    metrics: PrometheusHandle,
    readiness: Readiness,
    tasks: &mut BackgroundTasks,
) -> anyhow::Result<()> {
    let process = metrics_process::Collector::default();
    process.describe();

    let rendered = metrics.clone();
    let router = api::operations_router(
        Arc::new(move || {
            process.collect();
            rendered.render()
        }),
        readiness,
    );

    let limits = ServeLimits::new(config, OPERATIONS_TIMEOUT);
    let server = http::serve(
        config.metrics_listen,
        "http.metrics_listen",
        router,
        limits,
        tasks.ending(),
    )
    .await?;

    tasks.spawn("operations", async move { Ok(server.await?) });
    let shutdown = tasks.shutdown.clone();

    tasks.spawn("metrics", async move {
        while shutdown
            .run_until_cancelled(tokio::time::sleep(METRICS_UPKEEP))
            .await
            .is_some()
        {
            metrics.run_upkeep();
        }

        Ok(())
    });

    Ok(())
}
