//! I/O errors of either server's disk: calls on its files fail with EIO.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{World, server_log_length, wait_for_server_log};
use crate::support::{are_installed, server};
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

const IO: &str = "the server reports I/O errors";

/// The library by which calls fail, and the directory that controls it: see `eio.c`.
struct Faults {
    directory: tempfile::TempDir,
}

impl Faults {
    /// Compiles the library. None without a compiler.
    fn compile() -> Option<Faults> {
        if !are_installed(&["cc"]) {
            return None;
        }

        let directory = tempfile::tempdir().unwrap();

        // The server runs as another user, and removes files.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reliability/disks/eio.c");
        let mut compiler = std::process::Command::new("cc");

        compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(directory.path().join("eio.so"))
            .arg(source)
            .arg("-ldl");
        assert!(compiler.status().unwrap().success(), "eio.c is compiled");

        Some(Faults { directory })
    }

    async fn server(&self, settings: &[(&str, &str)]) -> PrivatePostgres {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        let environment = [("LD_PRELOAD", path("eio.so")), ("WALHOOK_FAULTS", path(""))];
        let environment = environment
            .each_ref()
            .map(|(name, value)| (*name, value.as_str()));
        let options = Options {
            fsync: true,
            settings,
            environment: &environment,
            ..Options::default()
        };

        server(options).await
    }

    /// Lets `operation` fail on files whose paths contain `pattern`.
    fn begin(&self, operation: &str, pattern: &str) {
        // Moved to its place: the server must not read an empty file.
        let new = self.directory.path().join("new");
        let flag = self.directory.path().join(operation);
        std::fs::write(&new, pattern).unwrap();
        std::fs::rename(new, flag).unwrap();
    }

    fn end(&self, operation: &str) {
        std::fs::remove_file(self.directory.path().join(operation)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn a_store_with_io_errors_loses_no_event_and_continues_when_they_end() {
    let Some(faults) = Faults::compile() else {
        return;
    };

    let mut world = World::prepare(super::server(&[]).await, faults.server(&[]).await).await;
    world.begin().await;

    let pid = world.app.sidecar().pid();
    let load = world.load();

    // The server cannot flush a commit: it crashes and recovers by itself.
    for _ in 0..3 {
        load.advance(20).await;
        let skipped = server_log_length(&world.store);

        faults.begin("fsync.once", "pg_wal");
        wait_for_server_log(&world.store, skipped, "PANIC").await;
        world.revive(&world.store).await;
    }

    load.advance(20).await;
    world.wait_until_stored(&load).await;
    world.assert_log_is_calm(3);

    faults.begin("write", "/base/");
    world.wait_for_disk_faults("store", "io", IO, 3).await;
    faults.end("write");
    world.wait_until_stored(&load).await;

    let loud = world.assert_log_is_calm(1);
    assert!(
        loud.iter().any(|line| line.contains("Input/output error")),
        "{loud:#?}"
    );

    // After a restart nothing is in the server's memory.
    world.store.stop(StopMode::Fast).await.unwrap();
    faults.begin("read", "/base/");
    world.store.start_again().await.unwrap();
    world.wait_for_disk_faults("store", "io", IO, 3).await;
    faults.end("read");
    load.advance(20).await;
    world.app.sidecar().wait_until_ready().await;
    world.assert_log_is_calm(1);

    let account = world.account(&load.stop().await, &Default::default()).await;
    println!("store with I/O errors (3 of fsync, then writes, then reads): {account}");
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn a_primary_with_io_errors_loses_no_event_and_continues_when_they_end() {
    let Some(faults) = Faults::compile() else {
        return;
    };

    let primary = faults
        .server(&[("logical_decoding_work_mem", "64kB")])
        .await;
    let mut world = World::prepare(primary, super::server(&[]).await).await;

    world.begin().await;
    let pid = world.app.sidecar().pid();
    let load = world.load();

    for _ in 0..3 {
        load.advance(20).await;
        let skipped = server_log_length(&world.app.server);

        faults.begin("fsync.once", "pg_wal");
        wait_for_server_log(&world.app.server, skipped, "PANIC").await;
        world.revive(&world.app.server).await;
    }

    load.advance(20).await;
    world.wait_until_stored(&load).await;
    world.assert_log_is_calm(3);

    // A transaction that does not fit into the walsender's memory is written to files, which fails.
    faults.begin("write", "/pg_replslot/");
    let platform = world.app.source().await;
    let bulk = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                select n, $1, repeat('INV', 100), 1, 1, 'ready' from generate_series(10000000, 10000999) n";

    platform.execute(bulk, &[&world.user]).await.unwrap();
    world.wait_for_disk_faults("primary", "io", IO, 3).await;
    world
        .wait_until_unready("capture: changes cannot be read now")
        .await;
    faults.end("write");
    world.wait_until_stored(&load).await;

    let loud = world.assert_log_is_calm(1);
    assert!(
        loud.iter().any(|line| line.contains("Input/output error")),
        "{loud:#?}"
    );

    world.app.server.stop(StopMode::Fast).await.unwrap();
    faults.begin("read", "/base/");
    world.app.server.start_again().await.unwrap();
    world.wait_for_disk_faults("primary", "io", IO, 3).await;
    faults.end("read");
    load.advance(20).await;
    world.app.sidecar().wait_until_ready().await;
    world.assert_log_is_calm(1);

    let account = world.account(&load.stop().await, &Default::default()).await;
    println!("primary with I/O errors (3 of fsync, then the slot's files, then reads): {account}");
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}
