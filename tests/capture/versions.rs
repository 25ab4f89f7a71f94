//! The main road on every server version that is on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use walhook::private_postgres::{Options, versions_below};

use crate::chaos::Road;
use crate::support::{TestApp, skip};

const SUPPORTED: std::ops::RangeInclusive<u32> = 14..=18;

/// Where scripts/fetch-postgres puts servers.
fn cache() -> PathBuf {
    if let Some(named) = std::env::var_os("WALHOOK_PG_CACHE") {
        return named.into();
    }
    let own = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let own = own.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache")));
    match own
        .map(|own| own.join("walhook-postgres"))
        .filter(|own| own.is_dir() && !rustix::process::geteuid().is_root())
    {
        Some(own) => own,
        None => "/var/cache/walhook-postgres".into(),
    }
}

/// Version and programs, the oldest first.
pub fn installed() -> Vec<(u32, PathBuf)> {
    let cache = cache();
    let found = [Path::new("/usr/lib/postgresql"), &cache].into_iter().flat_map(versions_below);
    let found: BTreeMap<u32, PathBuf> = found.filter(|(_, programs)| programs.join("initdb").is_file()).collect();
    found.into_iter().filter(|(version, _)| SUPPORTED.contains(version)).collect()
}

async fn main_road_and_a_kill(version: u32, programs: &Path) {
    let mut settings = vec![("wal_sender_timeout", "2s"), ("max_slot_wal_keep_size", "1GB")];
    if version >= 18 {
        settings.push(("idle_replication_slot_timeout", "1h"));
    }
    let options = Options { programs: Some(programs), settings: &settings, ..Options::default() };
    let mut road = Road::start(TestApp::prepare_alone(options).await).await;
    let slot = "select to_jsonb(slot) ->> 'failover' from pg_replication_slots slot where slot_name = $1";
    let failover: Option<String> = road.platform.client.query_one(slot, &[&road.app.name]).await.unwrap().get(0);
    assert_eq!(failover.as_deref(), (version >= 17).then_some("true"), "PostgreSQL {version}");
    road.pay(10).await;
    road.app.kill().await;
    road.pay(10).await;
    road.app.set("source.replica_identity", "index").setup().await;
    road.app.run().await;
    road.pay(10).await;
    road.assert_told().await;
    let lines = road.app.walhook_ok(&["check"]).await;
    assert!(lines.contains(&format!("PostgreSQL {version}")), "{lines}");
    assert!(lines.contains("warn  wal_sender_timeout: 2000 ms"), "{lines}");
    assert!(lines.contains("ok    max_slot_wal_keep_size: 1GB"), "{lines}");
    assert_eq!(lines.contains("warn  idle_replication_slot_timeout: 3600 s"), version >= 18, "{lines}");
    assert!(road.app.stop().await.success());
    road.app.walhook_ok(&["teardown", "--yes"]).await;
    assert!(road.app.walhook_ok(&["teardown", "--yes"]).await.contains("nothing is left to remove"));
}

async fn main_road_on(version: u32) {
    match installed().into_iter().find(|(found, _)| *found == version) {
        Some((_, programs)) => main_road_and_a_kill(version, &programs).await,
        None => {
            skip(&format!("no PostgreSQL {version}: scripts/fetch-postgres {version} fetches it"));
        }
    }
}

macro_rules! main_road {
    ($($test:ident: $version:literal,)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                main_road_on($version).await;
            }
        )+
    };
}

main_road! {
    the_main_road_is_open_on_version_14: 14,
    the_main_road_is_open_on_version_15: 15,
    the_main_road_is_open_on_version_16: 16,
    the_main_road_is_open_on_version_17: 17,
    the_main_road_is_open_on_version_18: 18,
}
