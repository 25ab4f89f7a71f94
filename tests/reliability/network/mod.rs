//! Bad networks between a sidecar and each of its peers: latency, loss, silence in one direction,
//! resets. As root, packets are dropped by the kernel, between network namespaces; otherwise a
//! proxy simulates that.

mod silence;
mod walk;
mod world;

use std::time::Duration;

use walk::{Walk, walk};
use world::{Fault, Peer};

/// The resident memory that the sidecar never exceeds in these tests: twice what it needs without
/// faults.
const MEMORY_KIB: u64 = 128 << 10;

const ALL: [Fault; 5] = [
    Fault::Latency,
    Fault::Loss,
    Fault::SilentToPeer,
    Fault::SilentFromPeer,
    Fault::Resets,
];
/// Also with a proxy in between that acknowledges packets, so that no kernel ends the connections.
const SILENCES: [Fault; 4] = [
    Fault::SilentToPeer,
    Fault::SilentFromPeer,
    Fault::HeldToPeer,
    Fault::HeldFromPeer,
];
const OTHERS: [Fault; 3] = [Fault::Latency, Fault::Loss, Fault::Resets];

/// Each peer alone.
fn alone(peers: &[Peer], faults: &[Fault]) -> Vec<(Vec<Peer>, Fault)> {
    peers
        .iter()
        .flat_map(|peer| faults.iter().map(|fault| (vec![*peer], *fault)))
        .collect()
}

fn short(proxied: bool, rounds: Vec<(Vec<Peer>, Fault)>) -> Walk {
    Walk {
        proxied,
        rounds,
        length: Duration::from_secs(1),
        bulk: 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_between_the_sidecar_and_its_databases_lose_nothing() {
    walk(short(false, alone(&[Peer::Primary, Peer::Store], &ALL))).await;
}

/// The servers that deliveries do not depend on fail together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn faults_of_other_servers_affect_no_delivery_and_those_of_a_receiver_only_its_own() {
    let servers = vec![Peer::MailServer, Peer::KeyServer, Peer::Collector];
    let mut rounds: Vec<_> = ALL.iter().map(|fault| (servers.clone(), *fault)).collect();
    rounds.extend(alone(&[Peer::Receiver], &ALL));
    walk(short(false, rounds)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn faults_of_the_delivery_proxy_delay_deliveries() {
    walk(short(true, alone(&[Peer::DeliveryProxy], &ALL))).await;
}

/// Longer than all timeouts of the sidecar and of the servers: connections are given up and opened
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 15 minutes: `make soak`"]
async fn long_silences_of_the_databases_lose_nothing() {
    let peers = [Peer::Primary, Peer::Store];
    walk(Walk {
        proxied: false,
        rounds: alone(&peers, &SILENCES),
        length: Duration::from_secs(75),
        bulk: 2_000,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 15 minutes: `make soak`"]
async fn long_silences_of_other_servers_affect_no_delivery() {
    let peers = [
        Peer::MailServer,
        Peer::KeyServer,
        Peer::Collector,
        Peer::Receiver,
    ];

    walk(Walk {
        proxied: false,
        rounds: alone(&peers, &SILENCES),
        length: Duration::from_secs(40),
        bulk: 500,
    })
    .await;

    walk(Walk {
        proxied: true,
        rounds: alone(&[Peer::DeliveryProxy], &SILENCES),
        length: Duration::from_secs(40),
        bulk: 0,
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 10 minutes: `make soak`"]
async fn long_bad_weather_loses_nothing() {
    let peers = [
        Peer::Primary,
        Peer::Store,
        Peer::MailServer,
        Peer::KeyServer,
        Peer::Collector,
        Peer::Receiver,
    ];

    walk(Walk {
        proxied: false,
        rounds: alone(&peers, &OTHERS),
        length: Duration::from_secs(20),
        bulk: 500,
    })
    .await;

    walk(Walk {
        proxied: true,
        rounds: alone(&[Peer::DeliveryProxy], &OTHERS),
        length: Duration::from_secs(20),
        bulk: 0,
    })
    .await;
}
