//! The state that all pages share, and the paths of pages.

use std::sync::Arc;

use jiff::SignedDuration;
use uuid::Uuid;

use crate::api::ApiState;
use crate::config::Config;

/// The path of the first page: the list of webhooks.
pub const HOME: &str = "/ui";

#[derive(Clone)]
pub struct UiState {
    pub api: ApiState,
    /// `service.name`
    pub service: Arc<str>,
    /// The number of attempts in one round of a delivery.
    pub attempts: u16,
    /// How long events and log entries are stored.
    pub retention: SignedDuration,
}

impl UiState {
    pub fn new(config: &Config, api: ApiState) -> UiState {
        UiState {
            api,
            service: config.service.name.as_str().into(),
            attempts: config.delivery.schedule().attempts(),
            retention: SignedDuration::from_hours(24 * i64::from(config.retention.days)),
        }
    }
}

/// Returns the path of a webhook's page, or with `rest` of one below it.
pub fn webhook_path(webhook: Uuid, rest: &str) -> String {
    format!("{HOME}/webhooks/{webhook}{rest}")
}
