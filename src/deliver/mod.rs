//! The stage that calls receivers: what is due, in fair turns, each attempt signed anew.

mod claims;
mod client;
mod dispatcher;
mod gate;
pub mod guard;
mod lanes;
pub mod request;
pub mod resolver;
mod targets;

pub use claims::MAX_ROWS;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use secrecy::ExposeSecret;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::{Config, Proxy};
use crate::domain::delivery::{Answer, Attempt, Attempted, Sent};
use crate::domain::trace::{Sampling, SpanId};
use crate::domain::webhook::Target;
use crate::handoff::{Handed, Room};
use crate::store::Store;
use crate::vault::Vault;
pub use client::OwnFault;
use client::{Client, Endpoint};
use guard::Guard;
use request::{Notification, Signer, TooLarge};
use resolver::Resolver;

/// The configuration's part in it.
#[derive(Clone, Debug)]
pub struct Settings {
    pub timeout: Duration,
    pub concurrency: usize,
    pub per_webhook_concurrency: usize,
    /// While there are first attempts to make.
    pub retries_per_second: u32,
    pub max_payload_bytes: usize,
    pub user_agent: String,
    pub guard: Guard,
    pub proxy: Option<Proxy>,
    pub extra_ca_file: Option<PathBuf>,
    /// Where events are traced: receivers are told their trace then.
    pub sampling: Option<Sampling>,
    /// How long requests under way may take to end when the process is to end.
    pub drain: Duration,
}

impl Settings {
    pub fn from_config(config: &Config) -> anyhow::Result<Settings> {
        let name = &config.service.name;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            anyhow::bail!("service.name: `{name}` must be printable ASCII without spaces: it begins the User-Agent");
        }
        let delivery = &config.delivery;
        Ok(Settings {
            timeout: delivery.timeout.0,
            concurrency: delivery.concurrency,
            per_webhook_concurrency: delivery.per_webhook_concurrency,
            retries_per_second: delivery.retries_per_second,
            max_payload_bytes: delivery.max_payload_bytes,
            user_agent: format!("{name}-Webhooks/1.0"),
            guard: Guard::new(delivery.allow_http, delivery.allow_networks.clone())
                .denying(delivery.deny_networks.clone())
                .with_lookup(Resolver::of_this_host(delivery.timeout.0).into_lookup()),
            proxy: delivery.proxy().map_err(anyhow::Error::msg)?,
            extra_ca_file: delivery.extra_ca_file.clone(),
            sampling: config.tracing.sampling(),
            drain: config.shutdown.drain.0,
        })
    }
}

/// Makes single attempts. One a process, so that connections are shared; clones are cheap.
#[derive(Clone)]
pub struct Sender(Arc<Inner>);

struct Inner {
    client: Client,
    guard: Guard,
    clock: Arc<dyn Clock>,
    user_agent: String,
    max_payload_bytes: usize,
    sampling: Option<Sampling>,
}

impl Sender {
    pub fn new(settings: &Settings, clock: Arc<dyn Clock>) -> anyhow::Result<Sender> {
        Ok(Sender(Arc::new(Inner {
            client: Client::new(settings)?,
            guard: settings.guard.clone(),
            clock,
            user_agent: settings.user_agent.clone(),
            max_payload_bytes: settings.max_payload_bytes,
            sampling: settings.sampling,
        })))
    }

    /// One attempt, whether the webhook is active or not.
    pub async fn attempt(&self, target: &Target, notification: &Notification<'_>) -> Result<Attempt, OwnFault> {
        let endpoint = Endpoint::new(&target.url, &self.0.guard);
        self.signed(&endpoint, &Signer::new(target.secret.expose_secret()), notification).await
    }

    async fn signed(
        &self,
        endpoint: &Endpoint,
        signer: &Signer,
        notification: &Notification<'_>,
    ) -> Result<Attempt, OwnFault> {
        let Inner { client, user_agent, max_payload_bytes, .. } = &*self.0;
        let started_at = self.now();
        let mut request = match request::render(notification, started_at, signer, user_agent, *max_payload_bytes) {
            Ok(request) => request,
            Err(TooLarge { bytes }) => {
                return Ok(Attempt { started_at, answer: Answer::TooLarge { bytes }, sent: None });
            }
        };
        request.headers.extend(self.traceparent(notification, started_at));
        let signatures = request.signatures;
        let exchange = client.post(endpoint, request).await?;
        let sent = Sent { url: endpoint.url(), signatures, duration: exchange.duration, excerpt: exchange.excerpt };
        Ok(Attempt { started_at, answer: exchange.answer, sent: Some(sent) })
    }

    fn traceparent(&self, notification: &Notification<'_>, at: Timestamp) -> Option<(&'static str, String)> {
        let sampling = self.0.sampling?;
        let span = SpanId::of_attempt(notification.delivery, notification.attempt, at);
        Some(("traceparent", sampling.traceparent(notification.event, span)))
    }

    /// What stands in the log for a delivery to a webhook that is switched off.
    fn cancelled(&self) -> Attempt {
        Attempt { started_at: self.now(), answer: Answer::Inactive, sent: None }
    }

    /// To the millisecond, as receivers are told it.
    fn now(&self) -> Timestamp {
        let now = self.0.clock.now();
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }
}

/// What the dispatcher works with.
pub struct Context {
    pub store: Store,
    pub vault: Arc<Vault>,
    pub sender: Sender,
    pub settings: Settings,
}

/// Delivers until `stop`, then gives back what waits, lets requests under way end within the drain time, and returns.
///
/// `fresh` brings deliveries of this process that are leased and have their place in `room`; everything else is claimed
/// from the store. Attempts go to `attempted`; a full channel holds up new ones.
pub async fn run(
    context: Context,
    fresh: mpsc::UnboundedReceiver<Handed>,
    room: Room,
    attempted: mpsc::Sender<Attempted>,
    stop: CancellationToken,
) {
    dispatcher::Dispatcher::new(context, fresh, room, attempted).run(stop).await;
}
