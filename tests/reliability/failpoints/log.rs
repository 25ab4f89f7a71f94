//! Points of a store that reads the log of another one.

use super::Case;
use super::scene::{Scene, prepare_app};
use crate::support::TestApp;
use crate::support::account::Account;

/// Commits after the point, while a process is dead or fails.
const LATER: usize = 3;

/// A store that reads a log, and the process that writes it. The store's database is the platform's.
async fn scene(case: Case) -> (Scene, TestApp) {
    let mut scene = Scene::new(case, true).await;
    let mut relay = prepare_app().await;
    relay
        .set("source.url", &scene.app.source_url)
        .set("delivery.timeout", "1s");
    relay.setup().await;
    relay.run_with(&["--roles", "capture"]).await;

    scene
        .app
        .set("source.capture", "log")
        .set("source.log_url", &relay.store_url)
        .set("source.poll_interval", "50ms");
    scene.add_webhook("/plain", "none").await;
    scene.add_webhook("/strict", "strict").await;
    scene.receiver.answer_status(200);

    (scene, relay)
}

/// Commits until the point is reached and some times more.
pub async fn run(case: Case) -> Account {
    let (mut scene, mut relay) = scene(case).await;
    scene.app.setup().await;
    let mut armed = scene.spawn_armed();

    scene.drive(&mut armed).await;
    let processes = scene.carry_on(armed).await;
    scene.commit_times(LATER).await;

    let account = scene.settle(processes).await;
    relay.stop().await;
    account
}

/// Sets up a store that reads a log. The log then loses its last events, and gets them again.
pub async fn run_loss(case: Case) -> Account {
    const LOSE: &str = "create table lost as select * from walhook.event where sequence > 2;
                        delete from walhook.event where sequence > 2;
                        update walhook.event_sequence set last = 2";
    const FIND: &str = "insert into walhook.event select * from lost;
                        update walhook.event_sequence set last = 6";

    let (mut scene, mut relay) = scene(case).await;
    scene.fail_command(&["setup"]).await;
    scene.app.setup().await;
    scene.app.run().await;
    scene.commit_times(3).await;
    scene.app.wait_for_events(6).await;
    scene.app.stop().await;
    relay.stop().await;

    let log = relay.store().await;
    log.batch_execute(LOSE).await.expect("a loss");
    let armed = scene.spawn_armed();
    scene.wait_until_reached().await;
    let processes = scene.carry_on(armed).await;
    log.batch_execute(FIND).await.expect("the events");

    relay.run_with(&["--roles", "capture"]).await;
    scene.commit_times(LATER).await;
    let account = scene.settle(processes).await;
    relay.stop().await;
    account
}

/// Reads a log that has dropped events before they were read.
pub async fn run_expiry(case: Case) -> Account {
    let (mut scene, mut relay) = scene(case).await;
    scene.app.setup().await;
    scene.commit_times(3).await;
    relay.wait_for_events(6).await;

    let drop = "delete from walhook.event where sequence <= 2";
    relay
        .store()
        .await
        .execute(drop, &[])
        .await
        .expect("a drop");
    scene.committed.drain(..2);

    let armed = scene.spawn_armed();
    scene.wait_until_reached().await;
    let _processes = scene.carry_on(armed).await;
    scene.commit_times(LATER).await;
    crate::support::account::settled(&scene.store, &scene.committed).await;

    let closed = scene.app.walhook_ok(&["repair"]).await;
    assert!(
        closed.contains("no longer has 2 events after event 0"),
        "{closed}"
    );
    relay.stop().await;
    scene.account().await
}
