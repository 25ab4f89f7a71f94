//! A start while databases are down.

use walhook::private_postgres::{Options, StopMode};

use crate::support::{Api, Receiver, TestApp, eventually};

#[tokio::test]
async fn a_store_that_is_down_at_start_is_waited_for() {
    let app = TestApp::prepare_alone(Options::default()).await;
    app.setup().await;

    let receiver = Receiver::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let token = app.token(&user.to_string()).await;
    drop(platform);

    app.server.stop(StopMode::Fast).await.unwrap();
    let mut sidecar = app.spawn(&[]);
    let api = Api::new(&sidecar.api_url, &token);

    let not_ready = eventually("the listeners", async || sidecar.readiness().await).await;
    assert_eq!(not_ready.0, 503, "{}", not_ready.1);

    let answer = api.get("/webhooks").await.expect(503);
    assert!(answer.header("retry-after").is_some(), "{}", answer.body);

    app.server.start_again().await.unwrap();
    sidecar.wait_until_ready().await;

    let (webhook, _) = api
        .create_webhook(&receiver.url("/hook"), &["payment.statement_ready"])
        .await;
    app.platform().await.payment(user, "ready").await;
    receiver.wait_for(1).await;
    assert_eq!(api.webhook(&webhook).await["active"], true);

    assert!(sidecar.stop().await.success());
    let log = std::fs::read_to_string(app.log_file()).unwrap();
    let last = log.lines().last().unwrap();

    assert!(last.contains("shut down"), "{last}");
    assert!(log.contains("connecting to the store fails"), "{log}");
    assert!(!log.contains("trigger"), "none was ever created: {log}");
}

#[tokio::test]
async fn a_start_that_waits_for_the_store_ends_at_a_signal() {
    let app = TestApp::prepare_alone(Options::default()).await;
    app.setup().await;
    app.server.stop(StopMode::Fast).await.unwrap();

    let sidecar = app.spawn(&[]);
    eventually("the listeners", async || sidecar.readiness().await).await;
    assert!(sidecar.stop().await.success());
}
