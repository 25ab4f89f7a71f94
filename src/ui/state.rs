//! The state that all pages share, and the paths of pages.

use std::sync::Arc;

use axum::http::HeaderValue;
use jiff::SignedDuration;
use url::form_urlencoded::Serializer;
use uuid::Uuid;

use super::guide::Guide;
use super::headers;
use crate::api::ApiState;
use crate::config::Config;

/// The path of the first page: the list of webhooks.
pub const HOME: &str = "/ui";

#[derive(Clone)]
pub struct UiState {
    pub api: ApiState,
    /// The content security policy of every page.
    pub policy: HeaderValue,
    /// The origins whose pages may show the web UI in a frame, separated by spaces.
    pub ancestors: Arc<str>,
    pub guide: Arc<Guide>,
    /// The number of attempts in one round of a delivery.
    pub attempts: u16,
    /// How long events and log entries are stored.
    pub retention: SignedDuration,
}

impl UiState {
    pub fn new(config: &Config, api: ApiState) -> UiState {
        UiState {
            guide: Guide::new(config, api.base_path()).into(),
            policy: headers::policy(config, &api.brand),
            api,
            ancestors: config.ui.frame_ancestors.join(" ").into(),
            attempts: config.delivery.schedule().attempts(),
            retention: SignedDuration::from_hours(24 * i64::from(config.retention.days)),
        }
    }
}

/// Returns the path of a webhook's page, or with `rest` of one below it.
pub fn webhook_path(webhook: Uuid, rest: &str) -> String {
    format!("{HOME}/webhooks/{webhook}{rest}")
}

/// Returns a path with a query of the fields that are not empty.
pub fn link<'a>(path: &str, fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
    let query = Serializer::new(String::new()).extend_pairs(given).finish();

    format!("{path}?{query}").trim_end_matches('?').to_owned()
}
