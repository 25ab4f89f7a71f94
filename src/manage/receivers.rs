//! Access to receivers, which `app` supplies: `manage` is below the stage that calls them.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::domain::delivery::{Attempt, Delivery};
use crate::store::logs::Detail;

/// Judges receivers' URLs, renders requests and sends tests.
pub trait Receivers: Send + Sync {
    /// Checks a URL without a DNS lookup. The error is a predicate of the URL, such as `must begin with https://`.
    fn check_url(&self, url: &str) -> Result<(), String>;

    /// Resolves the URL's host and checks the addresses.
    fn look_up<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), Unreachable>>;

    /// Renders a logged request as it was sent. None where none was sent, or where the event has expired.
    fn render(&self, logged: &Detail) -> Option<RenderedRequest>;

    /// Makes one attempt, whatever the webhook's state, and logs it as a test. Returns the log entry's id. An error is a fault of
    /// Walhook, not of the receiver.
    fn send_test(&self, delivery: Delivery) -> BoxFuture<'_, anyhow::Result<(Uuid, Attempt)>>;
}

/// Why a URL's host cannot be called. The texts are fit for the webhook's owner to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// An address of the host must not be called.
    Blocked(String),
    /// The name does not resolve at the moment, or the lookup failed.
    Unresolved(String),
}

/// The headers and the body of a request.
#[derive(Clone, Debug)]
pub struct RenderedRequest {
    pub headers: BTreeMap<String, String>,
    pub body: String,
}
