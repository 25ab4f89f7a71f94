//! The management API: JSON over HTTP. Every request is authenticated, and reads and changes only
//! what belongs to its user.

mod account_logs;
mod asyncapi;
mod audit;
mod body;
mod deliveries;
mod docs;
mod enrich;
mod event_types;
mod feed;
mod feed_reader;
mod filter_values;
mod idempotency;
mod jobs;
mod keys;
mod log_export;
mod log_tail;
mod logs;
mod messages;
mod openapi;
mod operations;
mod public_keys;
mod query;
mod recover;
mod router;
mod schema;
mod sign_in_links;
mod state;
mod stats;
mod stream;
mod strict_query;
mod test;
mod tokens;
mod webhooks;

pub use self::asyncapi::document_text as asyncapi_document;
pub use self::openapi::document_text as openapi_document;
pub use self::operations::{Readiness, RenderMetrics, router as operations_router};
pub use self::public_keys::PublishedKeys;
pub use self::router::router;
pub use self::state::{ApiState, MAX_REQUEST_TIME};
pub use self::webhooks::WebhookBody;
