//! File descriptors: as many as the process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;

/// Beside connections of clients and to receivers: the store's and the primary's, listeners, files.
const OTHERS: u64 = 128;

/// Raises the soft limit to the hard one, and warns if that is less than the settings allow to be open at once. The soft limit is
/// 1,024 by tradition, for programs that use `select`.
pub fn raise_limit(config: &Config) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    };
    // A request to a receiver may leave an idle connection behind, which is kept for the next.
    let (http, delivery) = (&config.http, &config.delivery);
    let needed = 2 * http.max_connections as u64 + 2 * delivery.concurrency as u64 + OTHERS;
    if let Some(limit) = raised.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the process may open fewer files than http.max_connections and delivery.concurrency ask for: raise its limit (nofile)"
        );
    }
}
