//! `pg_resetwal` on either server: WAL that the slot needs, or the store's last commits, are gone.

use std::collections::HashSet;

use super::{World, server};
use postgres_types::PgLsn;
use rustix::process::Signal;

use crate::support::{eventually, one, run_sql};
use walhook::postgres;
use walhook::private_postgres::{PrivatePostgres, StopMode};

/// What is not in a checkpoint is in the WAL only, so that a reset loses it completely and not in
/// parts.
const ONLY_CHECKPOINTS_WRITE: [(&str, &str); 2] =
    [("bgwriter_lru_maxpages", "0"), ("checkpoint_timeout", "1h")];

/// Stops the server, resets its WAL and starts it.
async fn reset(server: &PrivatePostgres, mode: StopMode) {
    server.stop(mode).await.unwrap();
    let mut command = server.program("pg_resetwal");
    let output = command
        .arg("-f")
        .arg("-D")
        .arg(server.data_dir())
        .output()
        .await
        .unwrap();

    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    server.start_again().await.unwrap();
}

async fn checkpoint(server: &PrivatePostgres) {
    let client = postgres::connect(&server.url("postgres")).await.unwrap();
    run_sql(&client, "checkpoint").await;
}

impl World {
    /// Waits until this gap is reported in readiness, in the metric, in the log and by `check`,
    /// which name the remedy.
    pub(super) async fn wait_for_gap(&mut self, reason: &str) {
        self.wait_until_unready(&format!(
            "gap: changes were lost ({reason}): run `walhook repair`"
        ))
        .await;
        assert_eq!(
            self.app.sidecar().metric("walhook_gaps_open").await,
            Some(1.0)
        );

        let check = self.app.walhook(&["check"]).await;
        let check = String::from_utf8_lossy(&check.stdout).into_owned();

        assert!(
            check.contains(&format!("gap {reason}: ")) && check.contains("run `walhook repair`"),
            "{check}"
        );

        // While the gap is open, capture tries again without logging.
        self.wait_until_unready("capture: waiting for `walhook repair`")
            .await;
        let loud = self.assert_log_is_calm(1);
        assert_eq!(
            loud.iter()
                .filter(|line| line.contains("changes were lost: "))
                .count(),
            1,
            "{loud:#?}"
        );
    }

    /// Runs a repair while the sidecar waits for it, and waits until the sidecar continues.
    pub(super) async fn repair(&mut self) {
        let store = self.app.store().await;

        // The sidecar may be looking at the slot.
        eventually("a repair", async || {
            self.app
                .walhook(&["repair"])
                .await
                .status
                .success()
                .then_some(())
        })
        .await;

        self.app.sidecar().wait_until_ready().await;
        let open = "select count(*) from walhook.gap where repaired_at is null";
        assert_eq!(one::<i64>(&store, open).await, 0);
    }

    /// The ids of the payments that the primary has.
    pub(super) async fn payments(&self) -> HashSet<i64> {
        let rows = self
            .app
            .source()
            .await
            .query("select id from payment", &[])
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn a_primary_whose_wal_was_reset_is_a_gap_that_a_repair_closes() {
    let mut world = World::prepare(server(&ONLY_CHECKPOINTS_WRITE).await, server(&[]).await).await;
    world.begin().await;

    let pid = world.app.sidecar().pid();

    for mode in [StopMode::Fast, StopMode::Immediate] {
        world.pay(20).await;
        checkpoint(&world.app.server).await;

        let kept = world.payments().await;
        let delivered = world.pay(20).await;

        reset(&world.app.server, mode).await;
        world.wait_for_gap("wal_missing").await;

        let load = world.load();
        load.advance(20).await;

        let missed = load.stop().await;
        world.repair().await;

        let existing = world.payments().await;
        assert!(existing.is_superset(&kept) && existing.is_superset(&missed));

        let undone: HashSet<i64> = delivered.difference(&existing).copied().collect();
        assert_eq!(
            undone.is_empty(),
            mode == StopMode::Fast,
            "a crash without WAL loses what is in no checkpoint"
        );

        let account = world.account(&missed, &undone).await;
        println!(
            "pg_resetwal of the primary after a stop ({mode:?}): {} undone, {account}",
            undone.len()
        );

        // What the primary lost stays delivered.
        let platform = world.app.platform().await;

        for id in undone {
            let again =
                "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                         values ($1, $2, '', 1, 1, 'draft')";
            platform.execute(again, &[&id, &world.user]).await;
        }
    }

    world.pay(20).await;
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn a_store_whose_wal_was_reset_continues_or_is_a_gap_if_it_lost_commits() {
    let mut world = World::prepare(server(&[]).await, server(&ONLY_CHECKPOINTS_WRITE).await).await;
    world.begin().await;

    let pid = world.app.sidecar().pid();
    let load = world.load();

    load.advance(20).await;

    // After an orderly stop, the WAL contains nothing that the tables lack.
    reset(&world.store, StopMode::Fast).await;
    load.advance(20).await;
    world.app.sidecar().wait_until_ready().await;
    world.account(&load.stop().await, &HashSet::new()).await;
    assert_eq!(
        world.app.sidecar().metric("walhook_gaps_open").await,
        Some(0.0)
    );
    world.assert_log_is_calm(1);

    for crashes in [false, true] {
        lose_commits(&mut world, crashes).await;
    }

    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

/// Lets the store lose its last commits. If the primary crashes too, its slot returns to the
/// position that was saved last, and usually has the changes again.
async fn lose_commits(world: &mut World, primary_crashes: bool) {
    checkpoint(&world.store).await;
    let lost = world.pay(20).await;

    world.wait_for_acknowledgement().await;

    // It must not acknowledge while the positions are compared.
    world.app.sidecar().signal(Signal::STOP);
    reset(&world.store, StopMode::Immediate).await;

    if primary_crashes {
        world.app.server.restart(StopMode::Immediate).await.unwrap();
    }

    let confirmed = "select confirmed_flush_lsn from pg_replication_slots where slot_name = $1";
    let confirmed: PgLsn = world
        .app
        .source()
        .await
        .query_one(confirmed, &[&world.app.name])
        .await
        .unwrap()
        .get(0);

    let stored = "select resume_lsn from walhook.checkpoint";
    let stored: PgLsn = one(&world.app.store().await, stored).await;

    world.app.sidecar().signal(Signal::CONT);
    let is_gap = confirmed > stored;

    assert!(is_gap || primary_crashes);
    let load = world.load();

    if is_gap {
        world.wait_for_gap("store_behind").await;
        world.repair().await;
    }

    load.advance(20).await;
    let account = world.account(&load.stop().await, &HashSet::new()).await;
    let open = "select count(*) from walhook.gap where repaired_at is null";

    assert_eq!(one::<i64>(&world.app.store().await, open).await, 0);

    world.app.sidecar().wait_until_ready().await;
    world.assert_log_is_calm(2);

    let how = if is_gap {
        "raised again by a repair"
    } else {
        "read again"
    };

    println!(
        "pg_resetwal of the store after a crash: {} events {how}, {account}",
        lost.len()
    );
}
