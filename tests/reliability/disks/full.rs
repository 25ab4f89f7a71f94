//! Disks that fill up and have free space again.

use super::{Disk, World, server, server_log_length, wait_for_server_log};
use crate::support::{eventually, run_sql};
use walhook::postgres;
use walhook::private_postgres::PrivatePostgres;

const FULL: &str = "the server's disk is full";
/// Few segments, so that a new one is needed soon.
const SMALL_WAL: [(&str, &str); 2] = [("min_wal_size", "32MB"), ("max_wal_size", "32MB")];

/// Writes WAL until the server fails for lack of a new segment.
async fn use_up_wal(server: &PrivatePostgres) {
    let skipped = server_log_length(server);
    let client = postgres::connect(&server.url("postgres")).await.unwrap();
    let write = "select pg_logical_emit_message(false, 'filler', repeat('x', 1000000))";

    eventually("the WAL to fill the disk", async || {
        client.batch_execute(write).await.is_err().then_some(())
    })
    .await;
    wait_for_server_log(server, skipped, "PANIC").await;
    wait_for_server_log(server, skipped, "No space left on device").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_wal_filled_the_disk_continues_when_it_runs_again() {
    let Some(disk) = Disk::mount(160) else { return };
    let mut world = World::prepare(server(&[]).await, server(&SMALL_WAL).await).await;

    disk.take_wal(&world.store).await;
    world.begin().await;

    let pid = world.app.sidecar().pid();
    let load = world.load();

    for _ in 0..2 {
        load.advance(50).await;
        disk.fill();
        use_up_wal(&world.store).await;
        world.wait_until_unready("store: ").await;
        load.advance(50).await;
        disk.free();
        world.revive(&world.store).await;
        load.advance(50).await;
        world.app.sidecar().wait_until_ready().await;
    }

    let account = world.account(&load.stop().await, &Default::default()).await;
    println!("store's pg_wal full twice: {account}");
    world.assert_log_is_calm(2);
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn a_store_without_space_for_its_tables_continues_when_there_is_space() {
    let Some(disk) = Disk::mount(48) else { return };
    let mut world = World::prepare(server(&[]).await, server(&[]).await).await;

    disk.tablespace("small", &world.store).await;
    let admin = postgres::connect(&world.store.url("postgres"))
        .await
        .unwrap();

    run_sql(&admin, "alter database events set tablespace small").await;
    world
        .app
        .set("limits.webhooks_per_user", "100000")
        .set("limits.requests_per_second", "0");
    world.begin().await;

    let pid = world.app.sidecar().pid();
    let load = world.load();
    let api = world.app.api(&world.user.to_string()).await;

    disk.fill();
    world.wait_for_disk_faults("store", "full", FULL, 5).await;
    load.advance(200).await;

    // Requests that write are asked to try again later. Reads need no space.
    let refused = eventually("a webhook that does not fit", async || {
        let answer = api.post("/webhooks", large_webhook()).await;
        (answer.status != 201).then_some(answer)
    })
    .await;
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1")),
        "{}",
        refused.body
    );

    assert!(!refused.body.contains("space"), "{}", refused.body);
    assert!(!api.webhooks().await.is_empty());
    disk.free();
    load.advance(50).await;
    world.app.sidecar().wait_until_ready().await;

    let loud = world.assert_log_is_calm(1);
    assert!(
        loud.iter()
            .any(|line| line.contains("No space left on device")),
        "{loud:#?}"
    );
    api.post("/webhooks", large_webhook()).await.expect(201);

    let account = world.account(&load.stop().await, &Default::default()).await;
    println!("store's tables without space: {account}");
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

/// Four of them fill a page of the store.
fn large_webhook() -> serde_json::Value {
    let url = format!("https://example.com/{}", "x".repeat(1_500));
    serde_json::json!({ "name": "x".repeat(100), "url": url, "events": ["release.distributed"] })
}

/// Makes every statement that stores events sort more than fits into `work_mem`.
const SORT: &str = "
    create function sort() returns trigger language plpgsql as $$ begin
        perform count(*) from (select md5(n::text) as text from generate_series(1, 20000) n order by text offset 0) as sorted;
        return null;
    end $$;
    create trigger sort after insert on walhook.event for each statement execute function sort()";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half a minute: `make soak`"]
async fn a_store_without_space_for_temporary_files_continues_when_there_is_space() {
    let Some(disk) = Disk::mount(16) else { return };
    let mut world = World::prepare(server(&[]).await, server(&[("work_mem", "64kB")]).await).await;

    disk.tablespace("scratch", &world.store).await;
    let admin = postgres::connect(&world.store.url("postgres"))
        .await
        .unwrap();

    run_sql(
        &admin,
        "alter database events set temp_tablespaces = scratch",
    )
    .await;
    world.begin().await;
    run_sql(&world.app.store().await, SORT).await;

    let pid = world.app.sidecar().pid();
    let load = world.load();

    disk.fill();
    world.wait_for_disk_faults("store", "full", FULL, 3).await;
    disk.free();
    load.advance(20).await;
    world.app.sidecar().wait_until_ready().await;

    let account = world.account(&load.stop().await, &Default::default()).await;
    println!("store without space for temporary files: {account}");

    let loud = world.assert_log_is_calm(1);
    assert!(
        loud.iter()
            .any(|line| line.contains("No space left on device")),
        "{loud:#?}"
    );
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn what_a_primary_without_space_rejects_raises_nothing_and_capture_stays_healthy() {
    let Some(disk) = Disk::mount(48) else { return };
    let mut world = World::prepare(server(&[]).await, server(&[]).await).await;

    disk.tablespace("small", &world.app.server).await;
    let admin = postgres::connect(&world.app.server.url("postgres"))
        .await
        .unwrap();
    let moved = format!(
        "alter database {}_platform set tablespace small",
        world.app.name
    );

    eventually("the database to be moved", async || {
        admin.batch_execute(&moved).await.ok()
    })
    .await;
    world.begin().await;

    let load = world.load();
    disk.fill();
    load.wait_for_error("No space left on device").await;

    let (status, reasons) = world.app.sidecar().readiness().await.unwrap();
    assert_eq!(status, 200, "{reasons}");
    disk.free();
    load.advance(50).await;

    let account = world.account(&load.stop().await, &Default::default()).await;
    println!("primary's tables without space: {account}");
    assert_eq!(world.assert_log_is_calm(1), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "for `make soak`"]
async fn capture_continues_when_a_primary_whose_wal_filled_the_disk_runs_again() {
    let Some(disk) = Disk::mount(160) else { return };
    let mut world = World::prepare(server(&SMALL_WAL).await, server(&[]).await).await;

    disk.take_wal(&world.app.server).await;
    world.begin().await;

    let pid = world.app.sidecar().pid();
    let load = world.load();

    load.advance(50).await;
    disk.fill();
    use_up_wal(&world.app.server).await;
    world
        .wait_until_unready("capture: changes cannot be read now")
        .await;
    disk.free();
    world.revive(&world.app.server).await;
    load.advance(50).await;
    world.app.sidecar().wait_until_ready().await;

    let account = world.account(&load.stop().await, &Default::default()).await;
    println!("primary's pg_wal full: {account}");
    world.assert_log_is_calm(1);
    assert_eq!(world.app.sidecar().pid(), pid, "the same process");
}
