//! Endpoints for operators, on a listener of their own: metrics, liveness and readiness.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use serde::Serialize;

/// Renders the metrics in the Prometheus text format.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;
/// Returns the reasons why the process is not ready. None if it is ready.
pub type Readiness = Arc<dyn Fn() -> BoxFuture<'static, Vec<String>> + Send + Sync>;

#[derive(Clone)]
struct OperationsState {
    metrics: RenderMetrics,
    readiness: Readiness,
}

#[derive(Serialize)]
struct Health {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<String>,
}

/// `/metrics`, `/healthz` and `/readyz`.
pub fn router(metrics: RenderMetrics, readiness: Readiness) -> Router {
    Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .with_state(OperationsState { metrics, readiness })
}

async fn render(State(state): State<OperationsState>) -> Response {
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        (state.metrics)(),
    )
        .into_response()
}

async fn alive() -> Json<Health> {
    Json(Health {
        status: "ok",
        reasons: Vec::new(),
    })
}

async fn ready(State(state): State<OperationsState>) -> (StatusCode, Json<Health>) {
    let reasons = (state.readiness)().await;
    match reasons.is_empty() {
        true => (
            StatusCode::OK,
            Json(Health {
                status: "ready",
                reasons,
            }),
        ),
        false => (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(Health {
                status: "not ready",
                reasons,
            }),
        ),
    }
}
