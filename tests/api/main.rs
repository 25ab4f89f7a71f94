//! The management API over real HTTP, on a real Postgres.

#[path = "../support/mod.rs"]
mod support;

mod attacks;
mod audit;
mod browser;
mod document;
mod errors;
mod fixture;
mod idempotency;
mod isolation;
mod jwt;
mod logs;
mod names;
mod operations;
mod paging;
mod recovery;
mod schemathesis;
mod stats;
mod tenants;
mod tests_sent;
mod tokens;
mod webhooks;
