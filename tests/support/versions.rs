//! The versions of PostgreSQL that are installed on this machine.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use walhook::private_postgres::{BIN_VARIABLE, versions_below};

use super::skip;

const LATEST: u32 = 18;

const SUPPORTED: RangeInclusive<u32> = 14..=LATEST;

/// Returns the directory in which scripts/fetch-postgres installs servers.
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

/// Returns the installed versions and their programs, oldest first.
fn installed() -> Vec<(u32, PathBuf)> {
    let cache = cache();
    let found = [Path::new("/usr/lib/postgresql"), &cache]
        .into_iter()
        .flat_map(versions_below);
    let found: BTreeMap<u32, PathBuf> = found
        .filter(|(_, programs)| programs.join("initdb").is_file())
        .collect();

    found
        .into_iter()
        .filter(|(version, _)| SUPPORTED.contains(version))
        .collect()
}

/// Returns the programs of this version. If it is not installed, reports that the test is skipped.
pub fn exactly(version: u32) -> Option<PathBuf> {
    oldest_of(version..=version)
}

/// Returns the programs of the oldest installed version from this one on. If there is none, reports
/// that the test is skipped.
pub fn since(version: u32) -> Option<PathBuf> {
    oldest_of(version..=LATEST)
}

fn oldest_of(accepted: RangeInclusive<u32>) -> Option<PathBuf> {
    let found = installed()
        .into_iter()
        .find(|(version, _)| accepted.contains(version));

    if found.is_none() {
        let last = accepted.end();
        skip(&format!(
            "no PostgreSQL of {accepted:?}: `scripts/fetch-postgres {last}` fetches one"
        ));
    }

    found.map(|(_, programs)| programs)
}

/// Returns the installed version that the environment selects, as when all tests run on one version
/// after another.
pub fn selected() -> Option<u32> {
    let programs = PathBuf::from(std::env::var_os(BIN_VARIABLE)?);
    installed()
        .into_iter()
        .find(|(_, found)| *found == programs)
        .map(|(version, _)| version)
}

/// Returns the selected version, or else the latest one. `make soak` selects one after another.
pub fn selected_or_latest() -> Option<(u32, PathBuf)> {
    let mut versions = installed();
    versions.retain(|(version, _)| selected().is_none_or(|selected| selected == *version));
    versions.pop()
}
