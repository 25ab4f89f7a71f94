//! The running processes, as the store's server shows them: by the names of their sessions and the
//! ids of their claims. They store nothing about themselves.

use std::sync::LazyLock;

use jiff::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use super::statement::{Statements, from_row};
use super::{Result, Store};
use crate::sql::store as sql;
use crate::vault::random_bytes;

/// The most characters of a session's name that the server keeps.
const MAX_NAME: usize = 63;
/// The most of them for the name that the URL gives.
const MAX_FIRST: usize = 20;

/// A random number of this process. Names of sessions have it as eight hexadecimal digits.
static NUMBER: LazyLock<u32> = LazyLock::new(|| u32::from_be_bytes(random_bytes()));

/// Returns a new id with which this process claims to read the primary's changes. It ends with the
/// process's number.
pub fn new_claim() -> Uuid {
    let id = Uuid::now_v7().as_u128();
    Uuid::from_u128((id & !u128::from(u32::MAX)) | u128::from(*NUMBER))
}

/// Returns a name for sessions of this process, by which [`Store::processes`] finds it:
/// `walhook 0.1.0 capture,deliver 5f1c02aa host/417`.
pub(super) fn session_name(first: &str, roles: &str) -> String {
    let first: String = first.chars().take(MAX_FIRST).collect();
    let version = env!("CARGO_PKG_VERSION");
    let start = format!("{first} {version} {roles} {:08x} ", *NUMBER);

    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let place = format!("{host}/{}", std::process::id());

    // The end of a pod's name is what differs.
    let skipped = (start.len() + place.len()).saturating_sub(MAX_NAME);
    let place: String = place.chars().skip(skipped).collect();
    format!("{start}{place}")
}

/// A process that is connected to the store.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// Its host and process id. The beginning of a long name is missing.
    pub name: String,
    /// None for a connection by a socket, and if the server does not show it to this role.
    pub address: Option<String>,
    pub version: String,
    pub roles: Vec<String>,
    /// Whether it was the last one to claim to read the primary's changes.
    pub captures: bool,
    pub connected_at: Option<Timestamp>,
    /// Seconds since its last statement. A process that works has at most some ten.
    pub silent_seconds: Option<f64>,
}

from_row!(Process {
    name,
    address,
    version,
    roles,
    captures,
    connected_at,
    silent_seconds
});

impl Process {
    pub fn has_role(&self, role: &str) -> bool {
        self.roles.iter().any(|own| own == role)
    }
}

impl Store {
    /// Returns the processes that are connected, the oldest connection first.
    pub async fn processes(&self, slot: &str) -> Result<Vec<Process>> {
        self.fetch_all(sql::server::PROCESSES, &[&slot]).await
    }
}
