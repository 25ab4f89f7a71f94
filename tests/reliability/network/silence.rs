//! Connections that one end does not know to be dead: everything that uses them continues on
//! others.

use walhook::private_postgres::Options;

use super::world::{Peer, World};
use crate::support::proxy::Proxy;
use crate::support::{Receiver, TestApp, eventually};

/// As when a proxy between the sidecar and the store loses its state and still acknowledges
/// packets: the kernel notices nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn every_background_task_continues_after_its_connection_to_the_store_was_forgotten() {
    let Some(mut world) = World::start(false).await else {
        return;
    };

    world.link(Peer::Store).forget();
    world.notify().await;
    world.assert_works().await;
    world.account().await;
}

/// As when a firewall resets the sidecar's connections and drops the packets that would tell the
/// server: the slot stays in use for `wal_sender_timeout`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn capture_takes_the_slot_back_from_a_connection_whose_end_the_primary_has_not_noticed() {
    let settings = [("wal_sender_timeout", "10min")];
    let mut app = TestApp::prepare_alone(Options {
        settings: &settings,
        ..Options::default()
    })
    .await;
    let proxy = Proxy::start(app.server.port()).await;
    let url = app.source_url.replace(
        &format!(":{}", app.server.port()),
        &format!(":{}", proxy.port),
    );

    app.set("source.url", &url);
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let receiver = Receiver::start().await;
    let user = platform.user(&[]).await;

    app.api(&user.to_string())
        .await
        .create_webhook(&receiver.url("/"), &["payment.statement_ready"])
        .await;

    let reader = async || -> Option<i32> {
        let reader = "select active_pid from pg_replication_slots where slot_name = $1";
        platform
            .client
            .query_one(reader, &[&app.name])
            .await
            .unwrap()
            .get(0)
    };

    for payments in 1..=3 {
        platform.payment(user, "ready").await;
        receiver.wait_for(payments).await;

        let severed = reader().await.expect("the sidecar reads the slot");
        proxy.sever();
        eventually("a new connection to read the slot", async || {
            reader().await.filter(|reader| *reader != severed)
        })
        .await;
    }

    platform.payment(user, "ready").await;
    receiver.wait_for(4).await;
    app.wait_for_events(4).await;
}
