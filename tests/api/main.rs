//! The management API over real HTTP, on a real Postgres.

#[path = "../support/mod.rs"]
mod support;

mod apply;
mod attacks;
mod audit;
mod browser;
mod by_name;
mod conventions;
mod deliveries;
mod document;
mod errors;
mod feed;
mod feed_streams;
mod filter_values;
mod fixture;
mod hosts;
mod idempotency;
mod isolation;
mod jobs;
mod jwt;
mod keys;
mod log_search;
mod logs;
mod memory;
mod operations;
mod options;
mod paging;
mod recovery;
mod schemathesis;
mod stats;
mod tenants;
mod test_deliveries;
mod texts;
mod tokens;
mod unread;
mod webhooks;
