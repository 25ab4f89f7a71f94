//! Raises the limit of open file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::Config;
use crate::handoff::DETACHED;

/// Descriptors other than connections of clients and to receivers: connections to the store and the
/// primary, listeners, files.
const OTHERS: u64 = 128;

/// Raises the soft limit to the hard limit, and warns if that is less than the settings may need.
/// The soft limit is usually 1,024, for programs that use `select`.
pub fn raise_limit(config: &Config) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = match setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    ) {
        Ok(()) => maximum,
        Err(_) => current,
    };

    // Twice the connections: each of the two listeners has this limit; streams of the feed have
    // their own. Twice the requests: each may leave an idle connection, which is kept for the next
    // request. Besides these, some requests may be in flight without a permit.
    let http = &config.http;
    let delivery = &config.delivery;
    let requests = (2 + DETACHED as u64) * delivery.concurrency as u64;
    let needed = 2 * http.max_connections as u64 + http.max_streams as u64 + requests + OTHERS;

    if let Some(limit) = raised.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files is too low for http.max_connections, http.max_streams and delivery.concurrency: raise it (LimitNOFILE, ulimit -n)"
        );
    }
}
