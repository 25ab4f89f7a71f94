//! Connections with settings of their own, such as time limits that the server enforces.

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Error};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::postgres;
use crate::telemetry::recurring;

/// Settings of a session, by the names of the server's parameters.
pub(super) type SessionSettings = Vec<(&'static str, String)>;

/// Connects with settings, if there are any. They are startup parameters and not a `SET`: behind a
/// pooler in transaction mode, a `SET` would stay with a session that another client gets next.
pub(super) struct Configured {
    pub tls: Option<MakeRustlsConnect>,
    pub settings: SessionSettings,
}

impl Configured {
    async fn open(&self, config: &Config) -> Result<(Client, JoinHandle<()>), Error> {
        let (client, task, _) = postgres::open(config, self.tls.clone()).await?;
        Ok((client, task))
    }
}

impl Connect for Configured {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        let config = config.clone();
        Box::pin(async move {
            if self.settings.is_empty() {
                return self.open(&config).await;
            }

            let mut configured = config.clone();
            configured.options(postgres::with_settings(&config, &self.settings));

            match self.open(&configured).await {
                // A pooler that does not accept these startup parameters.
                Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                    let names: Vec<&str> = self.settings.iter().map(|(name, _)| *name).collect();
                    recurring!(info, %error, settings = names.join(", "), "the store's pooler does not accept settings: set them for the role");
                    self.open(&config).await
                }
                result => result,
            }
        })
    }
}
