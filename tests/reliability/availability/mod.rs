//! Failovers of a cluster under Patroni, with the primary and the store on it: nothing that the
//! application saw acknowledged is lost, and nothing is delivered that does not exist.

mod cluster;
mod load;
mod processes;
mod scenario;

use cluster::{Replication, in_time};
use scenario::{Ends, Scenario, StorePlace, Times};

const SYNCHRONOUS: Replication = Replication {
    synchronous: true,
    standby_slots: false,
};
const ASYNCHRONOUS: Replication = Replication {
    synchronous: false,
    standby_slots: false,
};
/// Standbys receive every commit before a logical slot sends it.
const STANDBYS_FIRST: Replication = Replication {
    synchronous: false,
    standby_slots: true,
};

/// How often a soak test repeats each fault.
const ROUNDS: usize = 3;

fn print(
    what: &str,
    Times {
        writable,
        delivered,
    }: &Times,
) {
    println!("{what:<40} writable after {writable:>6.1?}, first delivery after {delivered:>6.1?}");
}

/// Kills the leader's node and waits until another one leads. Returns the index of the killed node.
async fn kill_leader(scenario: &Scenario, what: &str) -> usize {
    let leader = scenario.cluster.wait_until_healthy().await;
    let fault = scenario.begin_fault();

    scenario.cluster.kill(&scenario.cluster.nodes[leader]).await;
    print(
        what,
        &scenario.wait_until_recovered(&fault, Ends::NewLeader).await,
    );

    leader
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_synchronous_leader_loses_nothing_and_invents_nothing() {
    let Some(mut scenario) = Scenario::start(SYNCHRONOUS, "wal", StorePlace::Cluster).await else {
        return;
    };

    let pid = scenario.app.sidecar().pid();
    kill_leader(&scenario, "kill -9 of the leader").await;
    scenario.pass(20).await;

    let outcome = scenario.settle().await;
    println!("    {outcome}");
    outcome.assert_exact();
    assert_eq!(scenario.app.sidecar().pid(), pid, "the same process");
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    KillLeader,
    /// Only PostgreSQL: Patroni starts it again on the same node.
    KillLeadingServer,
    KillEtcdLeader,
    SwitchOver,
    /// The leader's node answers nothing, and continues after it was replaced.
    FreezeLeader,
    /// The leader and the only standby that may replace it. Without two members of etcd, nobody may
    /// lead.
    KillTwo,
}

impl Kind {
    const ALL: [Kind; 6] = [
        Kind::KillLeader,
        Kind::KillLeadingServer,
        Kind::KillEtcdLeader,
        Kind::SwitchOver,
        Kind::FreezeLeader,
        Kind::KillTwo,
    ];

    /// Causes the fault, waits until the service is back, and repairs the cluster.
    async fn happen(self, scenario: &Scenario, round: usize) {
        let cluster = &scenario.cluster;
        let leader = scenario.wait_until_prepared().await;
        let node = &cluster.nodes[leader];
        let fault = scenario.begin_fault();

        let times = match self {
            Kind::KillLeader => {
                cluster.kill(node).await;
                let times = scenario.wait_until_recovered(&fault, Ends::NewLeader).await;
                cluster.start_node(node);
                times
            }
            Kind::KillLeadingServer => {
                processes::kill(&node.directory.join("data")).await;
                scenario
                    .wait_until_recovered(&scenario.begin_fault(), Ends::SameLeader)
                    .await
            }
            Kind::KillEtcdLeader => {
                let member = &cluster.nodes[cluster.etcd_leader().await];
                processes::kill(&member.directory.join("etcd")).await;

                let times = scenario
                    .wait_until_recovered(&fault, Ends::SameLeader)
                    .await;
                scenario.pass(100).await;
                cluster.start_etcd(member);

                times
            }
            Kind::SwitchOver => {
                cluster.switch_over().await;
                scenario.wait_until_recovered(&fault, Ends::NewLeader).await
            }
            Kind::FreezeLeader => {
                cluster.move_etcd_leader_from(leader).await;
                processes::freeze(&node.directory).await;
                let times = scenario.wait_until_recovered(&fault, Ends::NewLeader).await;

                scenario.pass(20).await;
                processes::thaw(&node.directory).await;

                times
            }
            Kind::KillTwo => {
                let standby = cluster.synchronous_standby().await;
                cluster.kill(node).await;
                cluster.kill(&cluster.nodes[standby]).await;

                let (first, second) = if round.is_multiple_of(2) {
                    (standby, leader)
                } else {
                    (leader, standby)
                };

                let returned = scenario.begin_fault();
                cluster.start_node(&cluster.nodes[first]);

                let times = scenario
                    .wait_until_recovered(&returned, Ends::SameLeader)
                    .await;
                cluster.start_node(&cluster.nodes[second]);

                times
            }
        };

        print(&format!("{self:?}, round {}", round + 1), &times);
        scenario.pass(50).await;
    }
}

/// All kinds of faults, one after the other, with the primary and the store on the same cluster.
async fn endure_all(capture: &'static str) {
    let Some(mut scenario) = Scenario::start(SYNCHRONOUS, capture, StorePlace::Cluster).await
    else {
        return;
    };

    let pid = scenario.app.sidecar().pid();

    for round in 0..ROUNDS {
        for kind in Kind::ALL {
            kind.happen(&scenario, round).await;
            let outcome = scenario.settle().await;
            println!("    {outcome}");
            outcome.assert_exact();
        }
    }

    assert_eq!(scenario.app.sidecar().pid(), pid, "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 20 minutes: `make soak`"]
async fn no_fault_of_a_synchronous_cluster_loses_or_invents_events() {
    endure_all("wal").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 20 minutes: `make soak`"]
async fn no_fault_of_a_synchronous_cluster_loses_or_invents_events_with_triggers() {
    endure_all("trigger").await;
}

/// Kills the leader after the standbys have missed commits, which are delivered if `delivers`.
/// Returns the index of the killed node.
async fn undo_commits(scenario: &Scenario, delivers: bool) -> usize {
    let leader = scenario.wait_until_prepared().await;
    let cluster = &scenario.cluster;
    let standbys = cluster
        .nodes
        .iter()
        .enumerate()
        .filter(|(index, _)| *index != leader)
        .map(|(_, node)| node);

    for node in standbys.clone() {
        // The members of etcd continue: without them, the leader would give up.
        processes::kill(&node.directory.join("patroni")).await;
        processes::kill(&node.directory.join("data")).await;
    }

    if delivers {
        scenario.pass(50).await;
    } else {
        let before = scenario.acknowledged();
        in_time("payments that no standby has", async || {
            (scenario.acknowledged() >= before + 50).then_some(())
        })
        .await;
    }

    cluster.kill(&cluster.nodes[leader]).await;

    for node in standbys {
        cluster.start_patroni(node);
    }

    leader
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 2 minutes: `make soak`"]
async fn an_asynchronous_failover_that_undoes_delivered_commits_is_a_gap() {
    let Some(mut scenario) = Scenario::start(ASYNCHRONOUS, "wal", StorePlace::Elsewhere).await
    else {
        return;
    };

    let fault = scenario.begin_fault();
    undo_commits(&scenario, true).await;

    let store = scenario.app.store().await;
    let open = "select reason from walhook.gap where repaired_at is null";
    let reason = in_time("the gap", async || {
        store.query_opt(open, &[]).await.unwrap()
    })
    .await;

    assert_eq!(reason.get::<_, &str>(0), "timeline_forked");
    scenario.app.walhook_ok(&["repair"]).await;
    print(
        "asynchronous, after the repair",
        &scenario.wait_until_recovered(&fault, Ends::NewLeader).await,
    );

    let outcome = scenario.settle().await;
    println!("    {outcome}");
    assert!(
        !outcome.lost_by_cluster.is_empty() && !outcome.false_events.is_empty(),
        "{outcome:?}"
    );
    assert!(
        outcome.false_events.is_subset(&outcome.lost_by_cluster),
        "{outcome:?}"
    );

    // The second is the note of the repair that it was running.
    assert_eq!(outcome.gaps, ["timeline_forked", "repair_unfinished"]);
    assert!(
        store.query(open, &[]).await.unwrap().is_empty(),
        "both are repaired"
    );
}

/// The failover undoes the last commits of the store as well, and with them the checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 2 minutes: `make soak`"]
async fn an_asynchronous_failover_of_primary_and_store_delivers_everything_that_is_left() {
    let Some(mut scenario) = Scenario::start(ASYNCHRONOUS, "wal", StorePlace::Cluster).await else {
        return;
    };

    let fault = scenario.begin_fault();
    undo_commits(&scenario, true).await;
    print(
        "asynchronous, store on the cluster",
        &scenario.wait_until_recovered(&fault, Ends::NewLeader).await,
    );

    let outcome = scenario.settle().await;
    println!("    {outcome}");
    assert!(
        !outcome.lost_by_cluster.is_empty() && !outcome.false_events.is_empty(),
        "{outcome:?}"
    );
    assert!(outcome.gaps.is_empty(), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes 2 minutes: `make soak`"]
async fn a_slot_that_waits_for_standbys_invents_nothing_and_waits_for_the_dead_leader_too() {
    let Some(mut scenario) = Scenario::start(STANDBYS_FIRST, "wal", StorePlace::Elsewhere).await
    else {
        return;
    };

    let dead = undo_commits(&scenario, false).await;
    let waits = "select from pg_stat_activity join pg_replication_slots on pid = active_pid
         where slot_name = $1 and wait_event = 'WaitForStandbyConfirmation'";

    in_time(
        "the new leader's slot to wait for the dead node",
        async || {
            let leader = &scenario.cluster.nodes[scenario.cluster.leader().await?];
            scenario
                .cluster
                .connect(leader)
                .await?
                .query_opt(waits, &[&scenario.app.name])
                .await
                .ok()?
        },
    )
    .await;

    let returned = scenario.begin_fault();
    scenario.cluster.start_node(&scenario.cluster.nodes[dead]);
    print(
        "standbys first, after the node's return",
        &scenario
            .wait_until_recovered(&returned, Ends::SameLeader)
            .await,
    );

    let outcome = scenario.settle().await;
    println!("    {outcome}");
    assert!(!outcome.lost_by_cluster.is_empty(), "{outcome:?}");
    assert!(
        outcome.false_events.is_empty() && outcome.gaps.is_empty(),
        "{outcome:?}"
    );
}
