//! Crashes of either server every second, under load.

use std::time::{Duration, Instant};

use super::{World, server};
use walhook::private_postgres::StopMode;

/// Between the start of a server and the next crash.
const INTERVAL: Duration = Duration::from_secs(1);

/// Crashes the primary and the store in turn, then both, and so on.
async fn crash_for(length: Duration) {
    let mut world = World::prepare(server(&[]).await, server(&[]).await).await;
    world.begin().await;

    let pid = world.app.sidecar().pid();
    let load = world.load();
    let began = Instant::now();
    let mut crashes = [0, 0];

    for round in 0.. {
        if began.elapsed() >= length {
            break;
        }

        let primary = round % 3 != 1;
        let store = round % 3 != 0;

        if primary {
            world.app.server.stop(StopMode::Immediate).await.unwrap();
            crashes[0] += 1;
        }

        if store {
            world.store.stop(StopMode::Immediate).await.unwrap();
            crashes[1] += 1;
        }

        if primary {
            world.app.server.start_again().await.unwrap();
        }

        if store {
            world.store.start_again().await.unwrap();
        }

        // The interval of the crashes. Nothing is waited for: whatever runs is interrupted.
        tokio::time::sleep(INTERVAL).await;
    }

    load.advance(20).await;
    world.app.sidecar().wait_until_ready().await;

    let account = world.account(&load.stop().await, &Default::default()).await;
    let [primary, store] = crashes;

    println!(
        "{primary} crashes of the primary and {store} of the store in {:.0?}: {account}",
        began.elapsed()
    );
    world.assert_log_is_calm(primary + store);
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashes_of_both_servers_every_second_lose_and_repeat_nothing() {
    crash_for(Duration::from_secs(12)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 10 minutes: `make soak`"]
async fn ten_minutes_of_crashes_of_both_servers_every_second_lose_and_repeat_nothing() {
    crash_for(Duration::from_secs(600)).await;
}
