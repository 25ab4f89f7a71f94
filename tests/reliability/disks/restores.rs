//! Either server restored in place to a point in time, from a base backup and archived WAL.

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use super::{World, copy, give_to_owner};
use crate::support::{eventually, one, server};
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

/// An archive of WAL and a base backup of one server.
struct Backup {
    directory: tempfile::TempDir,
}

impl Backup {
    fn new() -> Backup {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        Backup { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a server that archives its WAL here.
    async fn server(&self) -> PrivatePostgres {
        let command = format!("cp %p {}/%f", self.directory.path().display());
        let settings = [
            ("archive_mode", "on"),
            ("archive_command", command.as_str()),
        ];
        let options = Options {
            fsync: true,
            settings: &settings,
            ..Options::default()
        };

        server(options).await
    }

    /// Takes a base backup, without slots, as `pg_basebackup` does.
    async fn take(&self, server: &PrivatePostgres) {
        server.stop(StopMode::Fast).await.unwrap();
        copy(&server.data_dir(), &self.path("base")).await;

        for slot in std::fs::read_dir(self.path("base/pg_replslot")).unwrap() {
            std::fs::remove_dir_all(slot.unwrap().path()).unwrap();
        }

        server.start_again().await.unwrap();
    }

    /// Marks the present as a point to which the server can be restored.
    async fn mark(&self, server: &PrivatePostgres, point: &str) {
        let admin = postgres::connect(&server.url("postgres")).await.unwrap();
        admin
            .execute("select pg_create_restore_point($1)", &[&point])
            .await
            .unwrap();
    }

    /// Stops the server and restores it to `point`. With `with_slots`, the slots of the present are
    /// kept: some set-ups back them up.
    async fn restore(&self, server: &PrivatePostgres, point: &str, with_slots: bool) {
        let admin = postgres::connect(&server.url("postgres")).await.unwrap();
        admin.execute("select pg_switch_wal()", &[]).await.unwrap();
        drop(admin);

        // Ends when all WAL is archived.
        server.stop(StopMode::Fast).await.unwrap();
        let data = server.data_dir();
        let slots = self.path("slots");

        if with_slots {
            copy(&data.join("pg_replslot"), &slots).await;
        }

        std::fs::remove_dir_all(&data).unwrap();
        copy(&self.path("base"), &data).await;

        if with_slots {
            std::fs::remove_dir(data.join("pg_replslot")).unwrap();
            copy(&slots, &data.join("pg_replslot")).await;
        }

        let settings = data.join("postgresql.auto.conf");
        let mut text = std::fs::read_to_string(&settings).unwrap();

        text += &format!(
            "restore_command = 'cp {}/%f %p'\nrecovery_target_name = '{point}'\nrecovery_target_action = 'promote'\n",
            self.directory.path().display()
        );
        std::fs::write(&settings, text).unwrap();
        std::fs::write(data.join("recovery.signal"), "").unwrap();
        give_to_owner(&data.join("recovery.signal"), server);
        server.start_again().await.unwrap();

        eventually("the recovery to end", async || {
            let admin = postgres::connect(&server.url("postgres")).await.ok()?;
            let recovers: bool = admin
                .query_one("select pg_is_in_recovery()", &[])
                .await
                .ok()?
                .get(0);
            (!recovers).then_some(())
        })
        .await;
    }
}

/// Restores the primary under a running sidecar. The gap has this reason.
async fn restore_primary(with_slots: bool, reason: &str) {
    let backup = Backup::new();
    let mut world = World::prepare(backup.server().await, super::server(&[]).await).await;

    world.begin().await;
    backup.take(&world.app.server).await;

    let pid = world.app.sidecar().pid();
    let kept = world.pay(20).await;

    backup.mark(&world.app.server, "before").await;

    // So that the WAL ends before the checkpoint for a while after the restore.
    let filler = "select pg_logical_emit_message(false, 'filler', repeat('x', 4000000))";
    world.app.source().await.execute(filler, &[]).await.unwrap();

    let undone = world.pay(20).await;
    backup
        .restore(&world.app.server, "before", with_slots)
        .await;
    world.wait_for_gap(reason).await;

    let existing = world.payments().await;
    assert!(existing.is_superset(&kept) && existing.is_disjoint(&undone));

    let load = world.load();

    // The WAL grows for longer than capture waits before it looks again.
    load.advance(600).await;
    let missed = load.stop().await;

    assert_eq!(
        world.assert_log_is_calm(1),
        [""; 0],
        "the gap is logged once"
    );
    world.repair().await;

    let load = world.load();
    load.advance(20).await;

    let later: HashSet<i64> = load.stop().await.union(&missed).copied().collect();
    let account = world.account(&later, &undone).await;
    println!(
        "primary restored to a point in time ({reason}): {} undone, {account}",
        undone.len()
    );
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: `make soak`"]
async fn a_primary_restored_to_an_earlier_time_is_a_gap_that_a_repair_closes() {
    restore_primary(false, "slot_missing").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_restored_with_its_slot_is_a_gap_that_a_repair_closes() {
    restore_primary(true, "log_behind").await;
}

/// A world whose store can be restored to an earlier time. Returns the payments that were delivered
/// since then.
async fn world_with_earlier_store(backup: &Backup) -> (World, HashSet<i64>) {
    let mut world = World::prepare(super::server(&[]).await, backup.server().await).await;
    world.begin().await;
    backup.take(&world.store).await;
    world.pay(20).await;

    world.wait_for_acknowledgement().await;
    backup.mark(&world.store, "before").await;

    let later = world.pay(20).await;
    (world, later)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn a_store_restored_under_a_running_sidecar_is_a_gap_that_a_repair_closes() {
    let backup = Backup::new();
    let (mut world, later) = world_with_earlier_store(&backup).await;

    world.wait_for_acknowledgement().await;
    let pid = world.app.sidecar().pid();

    backup.restore(&world.store, "before", false).await;
    let load = world.load();

    world.wait_for_gap("store_behind").await;
    world.repair().await;
    load.advance(20).await;

    let account = world.account(&load.stop().await, &HashSet::new()).await;
    println!(
        "store restored under a running sidecar: {} events raised again, {account}",
        later.len()
    );
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn a_store_restored_while_nothing_runs_is_repaired_before_the_start() {
    let backup = Backup::new();
    let (mut world, later) = world_with_earlier_store(&backup).await;

    assert!(world.app.stop().await.success());
    backup.restore(&world.store, "before", false).await;
    world.app.walhook_ok(&["repair", "--force"]).await;

    let repaired = "select count(*) from walhook.event where repaired";
    let found: i64 = one(&world.app.store().await, repaired).await;

    assert_eq!(
        found as usize,
        later.len(),
        "the events since the point in time are raised again"
    );
    world.app.run().await;

    let load = world.load();
    load.advance(20).await;

    let account = world.account(&load.stop().await, &HashSet::new()).await;
    println!(
        "store restored while nothing ran: {} events raised again, {account}",
        later.len()
    );
}

/// Without `walhook repair --force`, a slot that is far ahead of the store is recognised.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute: `make soak`"]
async fn a_store_restored_to_long_ago_is_a_gap_also_after_a_start() {
    let backup = Backup::new();
    let (mut world, later) = world_with_earlier_store(&backup).await;
    let filler = "select pg_logical_emit_message(false, 'filler', repeat('x', 1000000)) from generate_series(1, 40)";

    world.app.source().await.execute(filler, &[]).await.unwrap();
    world.wait_for_acknowledgement().await;
    assert!(world.app.stop().await.success());
    backup.restore(&world.store, "before", false).await;

    let mut sidecar = world.app.spawn(&[]);
    eventually("the gap", async || {
        sidecar
            .readiness()
            .await
            .filter(|(status, text)| *status == 503 && text.contains("slot_ahead"))
    })
    .await;

    eventually("a repair", async || {
        world
            .app
            .walhook(&["repair"])
            .await
            .status
            .success()
            .then_some(())
    })
    .await;

    sidecar.wait_until_ready().await;
    let load = world.load();

    load.advance(20).await;
    let account = world.account(&load.stop().await, &HashSet::new()).await;
    println!(
        "store restored to 40 MB of WAL ago: {} events raised again, {account}",
        later.len()
    );
    assert!(sidecar.stop().await.success());
}
