//! The listener for operators.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use serde_json::{Value, json};
use walhook::api::{Readiness, operations_router};

use crate::fixture::serve;
use crate::support::Api;

#[tokio::test]
async fn readiness_depends_on_its_reasons_and_liveness_does_not() {
    let is_ready = Arc::new(AtomicBool::new(false));
    let seen = is_ready.clone();

    let readiness: Readiness = Arc::new(move || {
        let reasons = if seen.load(Ordering::Relaxed) {
            vec![]
        } else {
            vec!["the store cannot be reached".to_owned()]
        };
        async move { reasons }.boxed()
    });

    let origin = serve(operations_router(
        Arc::new(|| "walhook_gaps_open 0\n".to_owned()),
        readiness,
    ))
    .await;
    let api = Api::new(&origin, "");
    let answer: Value = api.get("/readyz").await.expect(503).json();

    assert_eq!(
        answer,
        json!({ "status": "not ready", "reasons": ["the store cannot be reached"] })
    );
    assert_eq!(api.get("/healthz").await.expect(200).json()["status"], "ok");
    is_ready.store(true, Ordering::Relaxed);
    assert_eq!(
        api.get("/readyz").await.expect(200).json(),
        json!({ "status": "ready" })
    );

    let metrics = api.get("/metrics").await.expect(200);
    assert_eq!(metrics.body, "walhook_gaps_open 0\n");
    assert!(
        metrics
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
}
