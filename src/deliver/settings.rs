//! The delivery stage's part of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use super::guard::Guard;
use super::resolver::Resolver;
use crate::config::{Config, Proxy};
use crate::domain::trace::Sampling;

#[derive(Clone)]
pub struct Settings {
    pub timeout: Duration,
    pub concurrency: usize,
    pub per_webhook_concurrency: usize,
    /// Applies while there are first attempts to make.
    pub retries_per_second: u32,
    /// Whether a webhook's concurrency follows its receiver's answers.
    pub adaptive_concurrency: bool,
    /// Whether receivers can postpone retries.
    pub honor_retry_after: bool,
    pub max_payload_bytes: usize,
    pub user_agent: String,
    pub guard: Guard,
    pub proxy: Option<Proxy>,
    pub extra_ca_file: Option<PathBuf>,
    /// If set, requests carry a `traceparent` header.
    pub sampling: Option<Sampling>,
    /// How long requests in flight may take to finish during shutdown.
    pub drain: Duration,
}

impl Settings {
    pub fn from_config(config: &Config) -> anyhow::Result<Settings> {
        let name = &config.service.name;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            anyhow::bail!(
                "service.name: `{name}` must be printable ASCII without spaces: the User-Agent starts with it"
            );
        }

        let delivery = &config.delivery;
        Ok(Settings {
            timeout: delivery.timeout.0,
            concurrency: delivery.concurrency,
            per_webhook_concurrency: delivery.per_webhook_concurrency,
            retries_per_second: delivery.retries_per_second,
            adaptive_concurrency: delivery.adaptive_concurrency,
            honor_retry_after: delivery.honor_retry_after,
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
