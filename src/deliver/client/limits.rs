//! Limits that both HTTP clients share.

use std::time::Duration;

/// Bytes that a receiver may send ahead of what is read: on one HTTP/2 stream, or of an HTTP/1 response in a tunnel. reqwest has no
/// setting for the latter.
pub const BUFFER_BYTES: usize = 64 << 10;
/// The same for all streams of one HTTP/2 connection together.
pub const HTTP2_BUFFER_BYTES: u32 = 1 << 20;
/// How long idle connections stay open. Some servers close theirs after five seconds: with a shorter time, few requests are sent on a
/// connection that the server is closing.
pub const POOL_IDLE: Duration = Duration::from_secs(4);
/// Interval of TCP keepalive probes, so that a connection whose other end disappeared is noticed.
pub const KEEPALIVE: Duration = Duration::from_secs(15);
