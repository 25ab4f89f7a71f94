//! Liveness and readiness, with the reasons of unreadiness.

use serde_json::{Value, json};

use crate::support::proxy::{Proxy, Weather};
use crate::support::{TestApp, eventually, fetch};

#[tokio::test]
async fn with_a_hanging_store_the_process_is_alive_but_not_ready() {
    let mut app = TestApp::prepare().await;
    let network = Proxy::start(app.server.port()).await;
    let through = app.store_url.replace(
        &format!(":{}", app.server.port()),
        &format!(":{}", network.port),
    );

    assert_ne!(through, app.store_url);
    app.set("store.url", &through);
    app.setup().await;
    app.run().await;

    let url = app.sidecar().metrics_url.clone();
    let answers = async |path: &str, status: u16| -> Value {
        let address = format!("{url}{path}");
        let answer = || async { fetch(&address).await.filter(|(found, _)| *found == status) };
        let (_, body) = eventually(&format!("{status} from {path}"), answer).await;
        serde_json::from_str(&body).unwrap()
    };

    assert_eq!(answers("/readyz", 200).await, json!({ "status": "ready" }));
    network.weather(Weather::Frozen);

    let found = answers("/readyz", 503).await;
    assert_eq!(found["status"], "not ready");

    assert!(
        found["reasons"]
            .as_array()
            .unwrap()
            .contains(&json!("store: it does not answer")),
        "{found}"
    );

    assert_eq!(answers("/healthz", 200).await, json!({ "status": "ok" }));
    network.weather(Weather::Fair);
    assert_eq!(answers("/readyz", 200).await, json!({ "status": "ready" }));
}
