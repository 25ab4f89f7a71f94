//! The sidecar of the demo, which runs in this process.

use std::pin::Pin;
use std::time::Duration;

use anyhow::anyhow;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustix::process::{Signal, getpid, kill_process};
use tokio::task::JoinHandle;

use super::client::DemoClient;
use crate::app::{self, Roles};
use crate::config::{Config, Sources, load};
use crate::primary::install::setup;
use crate::private_postgres::{PrivatePostgres, free_port};
use crate::vault::random_bytes;

const START_DEADLINE: Duration = Duration::from_secs(60);

/// The settings of the sidecar. Those in the environment are meant for another one.
pub fn settings(postgres: &PrivatePostgres) -> anyhow::Result<Config> {
    let listen = || anyhow::Ok(format!("127.0.0.1:{}", free_port()?));

    let settings = [
        ("source.url", postgres.url("platform")),
        ("store.url", postgres.url("store")),
        ("secrets.master_key", STANDARD.encode(random_bytes::<32>())),
        ("http.listen", listen()?),
        ("http.metrics_listen", listen()?),
        // The demo's receiver has neither a certificate nor a public address.
        ("delivery.allow_http", "true".to_owned()),
        ("delivery.allow_networks", "127.0.0.0/8".to_owned()),
    ];

    let sources = Sources {
        flags: settings.map(|(key, value)| format!("{key}={value}")).into(),
        ..Sources::default()
    };
    Ok(load(sources)?)
}

/// Prepares the platform's database and the store.
pub async fn prepare(config: &Config) -> anyhow::Result<()> {
    setup(&config.source, config.source_url()?, config.store_url()?).await?;
    Ok(())
}

/// The running sidecar.
pub struct Service(JoinHandle<anyhow::Result<()>>);

impl Service {
    /// Starts the sidecar and waits until it is ready.
    pub async fn start(config: Config, client: &DemoClient) -> anyhow::Result<Service> {
        let ready = client.wait_until_ready(config.http.metrics_listen);
        let roles = Roles {
            capture: true,
            deliver: true,
            api: true,
        };

        let mut service = Service(tokio::spawn(app::run(config, roles)));

        tokio::select! {
            error = service.failed() => Err(error),
            ready = tokio::time::timeout(START_DEADLINE, ready) => {
                ready.map_err(|_| anyhow!("the sidecar is not ready within {START_DEADLINE:?}"))?;
                Ok(service)
            }
        }
    }

    /// Waits until the sidecar ends unexpectedly, and returns that as an error.
    pub async fn failed(&mut self) -> anyhow::Error {
        match Pin::new(&mut self.0).await {
            Ok(Err(error)) => error.context("the sidecar ended"),
            _ => anyhow!("the sidecar ended unexpectedly"),
        }
    }

    /// Waits for the sidecar's end, which begins with a signal. A second one would end the process.
    pub async fn stop(self, is_signalled: bool) -> anyhow::Result<()> {
        if !is_signalled {
            kill_process(getpid(), Signal::TERM)?;
        }

        self.0.await?
    }
}
