//! `walhook listen` against a running sidecar: what the platform commits arrives at a developer's
//! receiver.

use super::{Listen, command, repeats};
use crate::support::proxy::Proxy;
use crate::support::{Receiver, TestApp};
use serde_json::Value;
use tokio::process::Command;

#[tokio::test]
async fn what_the_platform_commits_arrives_in_order_despite_lost_connections_and_a_kill() {
    let app = TestApp::start().await;
    let receiver = Receiver::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let other = platform.user(&[]).await;
    let release = platform.release(platform.label(user).await).await;
    let others_release = platform.release(platform.label(other).await).await;
    let api = app.api(&user.to_string()).await;
    let port: u16 = api.url.split([':', '/']).nth(4).unwrap().parse().unwrap();
    let network = Proxy::start(port).await;
    let directory = tempfile::tempdir().unwrap();
    let url = api
        .url
        .replace(&format!(":{port}/"), &format!(":{}/", network.port));

    let start = || {
        let mut command = command(&url, &receiver.url("/hooks"));
        command
            .env("WALHOOK_TOKEN", &api.token)
            .arg("--state")
            .arg(directory.path().join("state.json"));

        Listen::start(command)
    };

    // Not forwarded: it occurred before.
    platform.set_review_status(release, "to_review").await;
    app.wait_for_events(1).await;

    let mut listen = start().await;
    let statuses = ["approved", "audit", "rejected", "draft"];
    for (round, status) in statuses.into_iter().enumerate() {
        match round {
            // While the page is held open.
            1 => network.reset(),
            2 => listen.child.kill().await.unwrap(),
            // In the middle of the page.
            3 => network.cut_after(200),
            _ => {}
        }

        platform.set_review_status(others_release, status).await;
        platform.set_review_status(release, status).await;
        platform.payment(user, "ready").await;

        if round == 2 {
            let before = listen;
            listen = start().await;
            assert_eq!(
                (listen.webhook, &listen.secret),
                (before.webhook, &before.secret),
                "id and secret stay the same"
            );
        }

        receiver.wait_for(2 * (round + 1)).await;
    }

    app.wait_for_events(1 + 3 * statuses.len()).await;
    let feed = api.get("/events?limit=100").await.expect(200).json();
    let id = |event: &serde_json::Value| event["id"].as_str().unwrap().to_owned();
    let ids: Vec<String> = feed["data"].as_array().unwrap().iter().map(id).collect();

    assert_eq!(ids.len(), 1 + 2 * statuses.len());
    let last = ids.last().unwrap().clone();
    let arrived = receiver.wait_until("the last event", |requests| {
        requests
            .last()
            .is_some_and(|request| request.header("x-webhook-event-id") == last)
    });

    let received = arrived.await;
    assert!(
        repeats(&received, &ids[1..]) <= 1,
        "one kill, at most one repeat"
    );
    received
        .iter()
        .for_each(|request| request.assert_sound(&listen.secret));
    assert!(listen.interrupt().await.success());
}

#[tokio::test]
async fn the_feed_prints_each_event_once_and_continues_where_it_was() {
    let app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let api = app.api(&user.to_string()).await;
    let directory = tempfile::tempdir().unwrap();

    let printed = async || {
        let output = Command::new(env!("CARGO_BIN_EXE_walhook-listen"))
            .args(["feed", "--api", &api.url, "--state"])
            .arg(directory.path().join("feed.json"))
            .env("WALHOOK_TOKEN", &api.token)
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{output:?}");

        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect::<Vec<Value>>()
    };

    for _ in 0..3 {
        platform.payment(user, "ready").await;
    }

    app.wait_for_events(3).await;
    let feed = api.get("/events").await.expect(200).json();
    assert_eq!(printed().await, *feed["data"].as_array().unwrap());
    assert_eq!(printed().await, Vec::<Value>::new());

    platform.payment(user, "ready").await;
    app.wait_for_events(4).await;
    assert_eq!(printed().await.len(), 1);
}
