//! The interface through which use cases reach receivers. `app` implements it, because `manage` may
//! not depend on the stage that sends requests.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use url::Url;
use uuid::Uuid;

use crate::domain::delivery::{Attempt, Delivery};
use crate::domain::webhook::Target;
use crate::store::StoreError;
use crate::store::logs::LogDetail;

/// Checks receivers' URLs, renders logged requests and sends tests.
pub trait Receivers: Send + Sync {
    /// Parses and checks a URL without a DNS lookup. The error is a predicate of the URL, such as
    /// `must begin with https://`.
    fn check_url(&self, url: &str) -> Result<Url, String>;

    /// Resolves the URL's host and checks the addresses.
    fn look_up<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), UncallableHost>>;

    /// Renders a logged request as it was sent. None if none was sent, or if the event has expired.
    fn render(&self, logged: &LogDetail) -> Option<RenderedRequest>;

    /// Computes the signature of a logged request again, and returns the secret that gives the one
    /// that was sent. None if the webhook no longer has it.
    fn signed_with<'a>(
        &'a self,
        logged: &'a LogDetail,
        request: &'a RenderedRequest,
    ) -> BoxFuture<'a, Result<Option<SigningSecret>, StoreError>>;

    /// Makes one attempt, whatever the webhook's state, and logs it as a test. Returns the log
    /// entry's id. An error is a fault of Walhook, not of the receiver.
    fn send_test(&self, delivery: Delivery) -> BoxFuture<'_, anyhow::Result<(Uuid, Attempt)>>;

    /// Makes one attempt at a receiver without a webhook. Nothing is stored.
    fn send_unsaved_test(
        &self,
        target: Target,
        delivery: Delivery,
    ) -> BoxFuture<'_, anyhow::Result<Attempt>>;
}

/// Why a URL's host cannot be called. The texts can be shown to the webhook's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UncallableHost {
    /// An address of the host must not be called.
    Blocked(String),
    /// The name does not resolve at the moment, or the lookup failed.
    Unresolved(String),
}

/// A secret of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SigningSecret {
    Current,
    /// The one before the last replacement.
    Previous,
}

impl SigningSecret {
    pub const ALL: [SigningSecret; 2] = [SigningSecret::Current, SigningSecret::Previous];

    pub const fn as_str(self) -> &'static str {
        match self {
            SigningSecret::Current => "current",
            SigningSecret::Previous => "previous",
        }
    }
}

/// The headers and the body of a request.
#[derive(Clone, Debug)]
pub struct RenderedRequest {
    pub headers: BTreeMap<String, String>,
    pub body: String,
}
