//! Walks a table of peers and faults: disturbs, asserts what must still work, heals, and asserts
//! that everything works again.

use std::time::{Duration, Instant};

use serde_json::json;

use super::MEMORY_KIB;
use super::world::{Fault, Peer, Samples, World};
use crate::support::{Api, eventually};

/// The parameters of a walk.
pub struct Walk {
    /// Whether deliveries go through the proxy.
    pub proxied: bool,
    pub rounds: Vec<(Vec<Peer>, Fault)>,
    /// How long a fault lasts at least.
    pub length: Duration,
    /// Payments that are committed at once during each fault.
    pub bulk: i32,
}

/// Faults of at least this length end connections: the sidecar must report them.
const LONG: Duration = Duration::from_secs(70);
/// Attempts through tunnels that were open before the fault may fail as those of a slow receiver
/// do. Others are the proxy's fault.
const BLAMES_RECEIVER: [&str; 4] = ["connect_refused", "connect_timeout", "dns", "tls"];

/// Walks, accounts, and prints the figures.
pub async fn walk(plan: Walk) {
    let Some(mut world) = World::start(plan.proxied).await else {
        return;
    };

    let pid = world.app.sidecar().pid();
    println!("packets are lost by the {}", world.mechanism());
    println!(
        "peers, fault | lasted | dropped or broken | not ready of samples | recovered after | resident"
    );

    for (peers, fault) in &plan.rounds {
        round(&mut world, peers, *fault, &plan).await;
    }

    let payments = world.account().await;
    let peak = world.app.sidecar().peak_memory_kib();

    println!(
        "{payments} payments, each delivered; peak memory {} MiB",
        peak >> 10
    );
    assert!(peak < MEMORY_KIB, "{peak} KiB");
    assert_eq!(world.app.sidecar().pid(), pid, "it was not restarted");
}

async fn round(world: &mut World, peers: &[Peer], fault: Fault, plan: &Walk) {
    world.start_sampling().await;
    let began = Instant::now();
    let since = jiff::Timestamp::now();

    peers.iter().for_each(|peer| world.disturb(*peer, fault));
    world.notify().await;

    if plan.bulk > 0 {
        commit_many(world, plan.bulk).await;
    }

    let replica = match peers.contains(&Peer::KeyServer) {
        true => Some(world.app.replica(&["--roles", "api"]).await),
        false => None,
    };

    assert_unaffected(world, peers, fault, plan).await;

    if let Some(replica) = &replica {
        // It has not read the keys before the fault.
        let status = Api::new(&replica.api_url, &world.jwt)
            .get("/webhooks")
            .await
            .status;
        assert!(
            if fault.is_silence() {
                status == 503
            } else {
                [200, 503].contains(&status)
            },
            "{fault:?}: {status}"
        );
    }

    tokio::time::sleep(plan.length.saturating_sub(began.elapsed())).await;
    let lasted = began.elapsed();
    let during = world.take_samples();
    let dropped = world.heal(fault);
    let healed = Instant::now();

    world.assert_works().await;

    if let Some(replica) = replica {
        world
            .assert_accepts_tokens_of_the_platform(&replica.api_url)
            .await;
        replica.kill().await;
    }

    let recovered = healed.elapsed();
    assert_samples(&during, peers, fault, lasted);
    assert_attempts(world, peers, fault, since).await;

    let memory = world.app.sidecar().resident_memory_kib();
    assert!(memory < MEMORY_KIB, "{peers:?}, {fault:?}: {memory} KiB");

    println!(
        "{peers:?}, {fault:?} | {:.1} s | {dropped} | {} of {} | {:.1} s | {} MiB",
        lasted.as_secs_f64(),
        during.not_ready.len(),
        during.not_ready.len() + during.ready,
        recovered.as_secs_f64(),
        memory >> 10
    );
}

/// Commits payments of the second user in one transaction.
async fn commit_many(world: &World, count: i32) {
    let ids = (0..count)
        .map(|_| crate::support::next_id())
        .collect::<Vec<_>>();
    let insert = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                  select id, $2, 'INV', 1, 1, 'ready' from unnest($1::bigint[]) id";
    world
        .platform
        .execute(insert, &[&ids, &world.users[1]])
        .await;
}

/// Asserts that what does not depend on the peers works during the fault, and that metrics and
/// readiness report it if it concerns capture or the store.
async fn assert_unaffected(world: &mut World, peers: &[Peer], fault: Fault, plan: &Walk) {
    let has = |peer| peers.contains(&peer);
    let stops = |peer| has(peer) && fault.is_silence();
    if !stops(Peer::Primary) && !stops(Peer::Store) && !stops(Peer::DeliveryProxy) {
        world.assert_delivers_to(1).await;
    }

    if !stops(Peer::Store) {
        let of_platform = Api::new(&world.app.sidecar().api_url, &world.jwt);
        for api in [&world.api, &of_platform] {
            let answers = async || (api.get("/webhooks").await.status == 200).then_some(());

            match has(Peer::Store) {
                true => eventually("the API to answer", answers).await,
                false => answers().await.expect(
                    "the API needs neither the primary nor, with known keys, other servers",
                ),
            }
        }
    }

    if stops(Peer::Primary) {
        let path = format!("/webhooks/{}/test", world.webhooks[1]);
        let sent = world.api.post(&path, json!({})).await.expect(200).json();

        assert_eq!(sent["delivered"], true, "{sent}");
        let sidecar = world.app.sidecar();
        let lag = async || {
            sidecar
                .metric("walhook_capture_lag_seconds")
                .await
                .filter(|lag| *lag > 1.0)
        };

        eventually("the lag to grow", lag).await;

        if plan.length > LONG {
            wait_until_not_ready(world, "capture").await;
        }
    }

    if stops(Peer::Store) {
        wait_until_not_ready(world, "store: it does not answer").await;
    }

    if stops(Peer::DeliveryProxy) {
        let sidecar = world.app.sidecar();
        let before = sidecar.metric(PROXY_FAULTS).await.expect("the metric");

        eventually("the proxy to be blamed", async || {
            sidecar
                .metric(PROXY_FAULTS)
                .await
                .filter(|now| *now > before)
        })
        .await;
    }
}

const PROXY_FAULTS: &str = "walhook_own_faults_total{cause=\"proxy\"}";

async fn wait_until_not_ready(world: &mut World, reason: &str) {
    let sidecar = world.app.sidecar();
    let unready = async || {
        sidecar
            .readiness()
            .await
            .filter(|(status, body)| *status == 503 && body.contains(reason))
    };

    // Twice, because it may take longer than the deadline: silence of the stream is noticed after a
    // minute.
    let first = tokio::time::timeout(Duration::from_secs(50), async {
        while unready().await.is_none() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });

    if first.await.is_err() {
        eventually(&format!("not to be ready: {reason}"), unready).await;
    }
}

/// Asserts that the process was always alive, and always ready if neither capture nor the store was
/// concerned.
fn assert_samples(during: &Samples, peers: &[Peer], fault: Fault, lasted: Duration) {
    assert!(
        during.not_alive.is_empty(),
        "{peers:?}, {fault:?}: {:?}",
        during.not_alive
    );
    let concerns_databases = peers
        .iter()
        .any(|peer| matches!(peer, Peer::Primary | Peer::Store));
    if !concerns_databases {
        assert!(
            during.ready > 0,
            "{peers:?}, {fault:?}: no sample within {lasted:?}"
        );
        assert!(
            during.not_ready.is_empty(),
            "{peers:?}, {fault:?}: {:?}",
            during.not_ready
        );
    }
}

/// Asserts that only faults of the receiver use up its attempts, and those of the proxy only
/// attempts in open tunnels.
async fn assert_attempts(world: &World, peers: &[Peer], fault: Fault, since: jiff::Timestamp) {
    for ((webhook, kind), count) in world.failures(since).await {
        let is_expected = match peers {
            [Peer::Receiver] => webhook == 0,
            // If packets are lost, an answered request for a tunnel can make another one look like
            // a receiver's fault.
            [Peer::DeliveryProxy] => {
                fault == Fault::Loss || !BLAMES_RECEIVER.contains(&kind.as_str())
            }
            _ => false,
        };

        assert!(
            is_expected,
            "{peers:?}, {fault:?}: {count} attempts of webhook {webhook} failed as {kind}"
        );
    }
}
