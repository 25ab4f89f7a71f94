//! Tests of the test harness itself.

use std::time::Duration;

use crate::support::{Answer, Api, Platform, Receiver, TestApp};

#[tokio::test]
async fn the_receiver_records_raw_requests_in_order_and_responds_as_scripted() {
    let receiver = Receiver::start().await;
    receiver.answer_in_turn(&[
        Answer::Status(500),
        Answer::Full(302, vec![("location", "/x".into())], b"b".to_vec()),
    ]);

    let sender = Api::new(&receiver.url(""), "token");
    assert_eq!(
        sender
            .post("/a?b=1", serde_json::json!({"n": 1}))
            .await
            .status,
        500
    );

    let later = tokio::spawn(async move {
        sender
            .send("POST", "/c", &[("x-webhook-event", "e")], None)
            .await
            .status
    });

    let requests = receiver.wait_for(2).await;
    assert_eq!(later.await.unwrap(), 302);
    assert_eq!(
        (requests[0].path.as_str(), requests[0].body.as_ref()),
        ("/a?b=1", br#"{"n":1}"#.as_ref())
    );
    assert_eq!(
        (requests[1].path.as_str(), requests[1].event()),
        ("/c", "e")
    );
}

#[tokio::test]
async fn the_receiver_can_hang_reset_and_refuse() {
    let mut receiver = Receiver::start().await;
    let client = reqwest_client();
    let send = || {
        client
            .post(receiver.url("/"))
            .timeout(Duration::from_secs(3))
            .send()
    };

    receiver.answer(|_| Answer::Hang);
    assert!(send().await.unwrap_err().is_timeout());
    receiver.answer(|_| Answer::Reset);
    assert!(!send().await.unwrap_err().is_timeout());

    let url = receiver.url("/");
    receiver.close().await;
    assert!(client.post(&url).send().await.unwrap_err().is_connect());
    receiver.open().await;
    receiver.answer_status(204);
    assert_eq!(client.post(&url).send().await.unwrap().status(), 204);
}

fn reqwest_client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .build()
        .unwrap()
}

/// RFC 4231, test case 2.
#[test]
fn the_signature_is_the_published_one() {
    let signature = crate::support::signature("Jefe", b"what do ya want for nothing?");
    assert_eq!(
        signature,
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
}

#[tokio::test]
async fn the_platform_writes_rows_of_the_reference_schema() {
    let app = TestApp::prepare().await;
    let platform: Platform = app.platform().await;
    let user = platform.user(&["preflight_qc"]).await;
    let label = platform.label(user).await;
    let release = platform.release(label).await;

    platform.set_review_status(release, "to_review").await;
    let outlet = platform.outlet("Outlet").await;
    let distribution = platform.distribution(release, outlet, "scheduled").await;

    platform
        .set_distribution_status(distribution, "complete")
        .await;
    platform.track(release).await;
    platform.payment(user, "ready").await;
    platform
        .rolled_back(&format!(
            "update release set title = 'gone' where id = {release}"
        ))
        .await;

    let row = platform
        .client
        .query_one("select review_status, title from release", &[])
        .await
        .unwrap();
    assert_eq!(
        (row.get(0), row.get(1)),
        ("to_review", format!("Release {release}").as_str())
    );
}

#[tokio::test]
async fn settings_reach_the_binary_through_the_environment() {
    let mut app = TestApp::prepare().await;
    app.set("delivery.timeout", "200ms").set_fast_retries();
    let shown = app.walhook_ok(&["config"]).await;

    assert!(shown.contains("timeout = \"200ms\""), "{shown}");
    assert!(shown.contains(&app.name), "{shown}");
    assert!(!app.walhook(&["no-such-command"]).await.status.success());
}
