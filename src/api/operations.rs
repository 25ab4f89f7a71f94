//! Endpoints for operators, on a listener of their own: metrics, liveness and readiness.

use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::BoxFuture;
use serde_json::json;

/// Renders the metrics in the Prometheus text format.
pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;
/// Returns the reasons why the process is not ready. None if it is ready.
pub type Readiness = Arc<dyn Fn() -> BoxFuture<'static, Vec<String>> + Send + Sync>;

/// `/metrics`, `/healthz` and `/readyz`.
pub fn router(metrics: RenderMetrics, readiness: Readiness) -> Router {
    let render = async move || {
        let content_type = "text/plain; version=0.0.4; charset=utf-8";
        ([(header::CONTENT_TYPE, content_type)], metrics())
    };

    let ready = async move || match readiness().await {
        reasons if reasons.is_empty() => (StatusCode::OK, Json(json!({ "status": "ready" }))),
        reasons => (
            StatusCode::SERVICE_UNAVAILABLE,
            Json(json!({ "status": "not ready", "reasons": reasons })),
        ),
    };

    Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(async || Json(json!({ "status": "ok" }))))
        .route("/readyz", get(ready))
}
