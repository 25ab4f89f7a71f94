//! The use cases of users and operators: managing webhooks, reading the feed of events, sending
//! tests, reading and redelivering the delivery log, recoveries and replays, statistics, API
//! tokens, sessions of the web UI, idempotency keys, and erasing a user.
//!
//! `api`, `ui` and `cli` are adapters. They translate JSON, forms and arguments into the drafts of
//! this module, and its results and [`Fault`]s into responses, pages and output. Every use case
//! that concerns a webhook names the user or the user's session: another user's webhook is not
//! found.

mod deliveries;
pub mod erase;
mod fault;
pub mod feed;
mod filter_values;
mod idempotency;
mod jobs;
mod keys;
pub mod limits;
mod log_filters;
mod logs;
pub mod operators;
mod page;
mod receivers;
mod searches;
mod service;
mod sessions;
mod settings;
mod stats;
mod test_delivery;
pub mod tokens;
mod webhooks;

pub use self::deliveries::{DeliveryDetail, RoundOrigin};
pub use self::fault::Fault;
pub use self::idempotency::IdempotencyClaim;
pub use self::jobs::{
    JOB_KINDS, JobDraft, JobScope, MAX_LABELS, PeriodFault, StartedJob, replayable,
};
pub use self::keys::{NewKeys, Overlap, PublicKey, PublicKeyCursor, public_key_text};
pub use self::limits::OperationPermit;
pub use self::log_filters::{FILTERS, FilterField, FilterKind, MAX_TEXT_CHARS};
pub use self::logs::{LogEntry, LogScope, OUTCOMES, Redelivery, outcome};
pub use self::page::{Cursor, List, ListPage, MalformedCursor};
pub use self::receivers::{Receivers, RenderedRequest, SigningSecret, UncallableHost};
pub use self::service::Manage;
pub use self::sessions::{Principal, SignInLink};
pub use self::stats::{BriefHour, Counts, Hour};
pub use self::test_delivery::{LoggedTest, TestReport};
pub use self::tokens::TokenWithText;
pub use self::webhooks::{
    PutWebhook, UpdatedWebhook, VersionCondition, Warning, WebhookWithSecret, version,
};
pub use crate::domain::disablement::{Countdown, Policy};
pub use crate::domain::ordering::Ordering;
pub use crate::domain::scope::Scope;
pub use crate::domain::signing::Signing;
pub use crate::store::access::{LONGEST_LIFE as SESSION_LIFETIME, NewToken, Token};
pub use crate::store::audit::{Action, Actor, Record as AuditRecord, RecordFilter, Via};
pub use crate::store::deliveries::{NextAttempt, TimedEntry};
pub use crate::store::feed::{
    Event, EventDelivery, EventHeadline, FeedFilter, FilterValue, PageSize as FeedPageSize,
};
pub use crate::store::jobs::{Job, JobState};
pub use crate::store::logs::{Entry, EventData, LogDetail, LogFilter, StatusFilter};
pub use crate::store::webhooks::Webhook;
