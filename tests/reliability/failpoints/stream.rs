//! Points from capture to record: commits, a flaky receiver and an ordered webhook reach them.

use std::collections::HashSet;
use std::time::Duration;

use rustix::process::Signal;

use super::Case;
use super::scene::Scene;
use super::table::Action;
use crate::support::account::Account;
use crate::support::{Answer, Received, wal_end};

/// Commits after the point, while a process is dead or stalled.
const LATER: usize = 3;
const FLAKY: &str = "/flaky";

/// Rejects the first request of each delivery to this path, so that it is claimed again.
fn flaky() -> impl FnMut(&Received) -> Answer + Send + 'static {
    let mut seen = HashSet::new();
    move |request| {
        let rejects = request.path == FLAKY && seen.insert(request.delivery().to_owned());
        Answer::Status(if rejects { 500 } else { 200 })
    }
}

async fn scene(case: Case, capture: &str) -> Scene {
    let mut scene = Scene::new(case, true).await;
    scene
        .app
        .set("source.capture", capture)
        .set("source.poll_interval", "50ms");
    scene.receiver.answer(flaky());
    scene.add_webhook("/plain", "none").await;
    scene.add_webhook(FLAKY, "strict").await;
    scene.app.setup().await;

    scene
}

/// Commits until the point is reached and some times more. `capture` is the mode.
pub async fn run(case: Case, capture: &str) -> Account {
    let mut scene = scene(case, capture).await;
    let mut armed = scene.spawn_armed();

    scene.drive(&mut armed).await;
    let processes = scene.carry_on(armed).await;
    scene.commit_times(LATER).await;

    scene.settle(processes).await
}

/// Writes so much WAL without events that the limit must be raised before it is acknowledged.
pub async fn run_idle(case: Case) -> Account {
    const IDLE_WAL: &str = "select pg_logical_emit_message(false, 'idle', repeat('x', 20000000))";
    let mut scene = scene(case, "wal").await;
    let mut armed = scene.spawn_armed();

    armed.wait_until_ready().await;
    scene
        .platform
        .client
        .batch_execute(IDLE_WAL)
        .await
        .expect("a message");

    scene.wait_until_reached().await;

    let written = wal_end(&scene.platform.client).await;
    let processes = scene.carry_on(armed).await;
    scene
        .app
        .wait_for_acknowledgement(&scene.platform.client, written)
        .await;

    scene.commit_times(LATER).await;
    scene.settle(processes).await
}

/// The receiver answers so late that deliveries get rows while their requests are in flight.
pub async fn run_unpacking(case: Case) -> Account {
    let mut scene = scene(case, "wal").await;
    scene.app.set("delivery.timeout", "5s");
    scene
        .receiver
        .answer(|_| Answer::After(Duration::from_millis(4_500), 200));

    let armed = scene.spawn_armed();
    scene.commit_times(LATER).await;
    scene.wait_until_reached().await;

    let processes = scene.carry_on(armed).await;
    scene.receiver.answer_status(200);
    scene.settle(processes).await
}

/// Stops a process whose receiver is slow, so that deliveries wait in memory.
pub async fn run_shutdown(case: Case) -> Account {
    let mut scene = scene(case, "wal").await;
    scene.app.set("delivery.per_webhook_concurrency", "1");
    scene
        .receiver
        .answer(|_| Answer::After(Duration::from_millis(700), 200));

    let mut armed = scene.spawn_armed();
    armed.wait_until_ready().await;
    scene.commit_times(4).await;
    scene.receiver.wait_for(2).await;
    armed.signal(Signal::TERM);
    scene.wait_until_reached().await;

    let ended = armed.ended().await;
    assert_eq!(
        ended.success(),
        scene.case.action != Action::Kill,
        "{ended}"
    );
    scene.receiver.answer_status(200);
    scene.commit_times(LATER).await;

    let process = scene.app.spawn(&[]);
    scene.settle(vec![process]).await
}
