//! The state of the API.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::FromRef;
use axum::http::HeaderValue;
use tokio_util::sync::CancellationToken;

use super::public_keys::PublishedKeys;
use crate::auth::{Authenticator, JwtVerifier};
use crate::config::Config;
use crate::domain::cell::Shards;
use crate::http::Brand;
use crate::manage::Manage;

/// The time limit of a request, without the time for which a test waits for its receiver. Generous
/// for a handler.
pub const MAX_REQUEST_TIME: Duration = Duration::from_secs(60);

/// The state that requests share. Clones are cheap.
#[derive(Clone)]
pub struct ApiState {
    manage: Manage,
    pub auth: Authenticator,
    pub(super) published_keys: PublishedKeys,
    pub brand: Arc<Brand>,
    /// Without a trailing slash.
    base_path: Arc<str>,
    pub(super) max_body_bytes: usize,
    request_timeout: Duration,
    /// The origins whose pages may call the API from a browser.
    cors_origins: Arc<[HeaderValue]>,
    /// The sources of `frame-ancestors` in the policy of the API reference.
    ancestors: Arc<str>,
    /// Cancelled when the listener closes: streams and long polls end.
    closed: CancellationToken,
}

impl ApiState {
    /// Accepts the platform's tokens too if there is a verifier.
    pub fn new(config: &Config, manage: Manage, jwt: Option<JwtVerifier>) -> ApiState {
        let http = &config.http;

        ApiState {
            auth: Authenticator::new(config, manage.clone(), jwt),
            published_keys: PublishedKeys::of(manage.clone()),
            manage,
            brand: Brand::new(config).into(),
            base_path: http.base_path.trim_end_matches('/').into(),
            max_body_bytes: usize::try_from(http.max_body_bytes.0).unwrap_or(usize::MAX),
            cors_origins: http
                .cors_origins
                .iter()
                .filter_map(|origin| origin.parse().ok())
                .collect(),
            ancestors: config.ui.ancestors().into(),
            request_timeout: MAX_REQUEST_TIME + config.delivery.timeout.0,
            closed: CancellationToken::new(),
        }
    }

    /// Serves only users of these shards.
    pub fn with_shards(self, shards: Option<Arc<OnceLock<Shards>>>) -> ApiState {
        let auth = self.auth.clone().with_shards(shards);
        ApiState { auth, ..self }
    }

    /// Publishes the keys of several stores.
    pub fn with_published_keys(self, published_keys: PublishedKeys) -> ApiState {
        ApiState {
            published_keys,
            ..self
        }
    }

    /// Ends streams and long polls when the listener closes.
    pub fn with_closed(self, closed: CancellationToken) -> ApiState {
        ApiState { closed, ..self }
    }

    /// The use cases that the API and the web UI offer.
    pub fn manage(&self) -> &Manage {
        &self.manage
    }

    /// The time limit of a request. Its claim on an idempotency key expires after the same time.
    pub fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// The path of the API.
    pub fn base_path(&self) -> &str {
        &self.base_path
    }

    pub(super) fn cors_origins(&self) -> &[HeaderValue] {
        &self.cors_origins
    }

    pub(super) fn ancestors(&self) -> &str {
        &self.ancestors
    }

    pub(super) fn closed(&self) -> &CancellationToken {
        &self.closed
    }
}

impl FromRef<ApiState> for Authenticator {
    fn from_ref(state: &ApiState) -> Authenticator {
        state.auth.clone()
    }
}
