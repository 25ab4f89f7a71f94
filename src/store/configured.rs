//! Connections with settings of their own, such as time limits that the server enforces.

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, Error};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::postgres::{self, SessionSettings};

/// Connects with settings of the session.
pub(super) struct Configured {
    pub tls: Option<MakeRustlsConnect>,
    pub settings: SessionSettings,
}

impl Connect for Configured {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        let config = config.clone();
        Box::pin(async move {
            let (client, task, _) =
                postgres::open(&config, self.tls.clone(), &self.settings).await?;
            Ok((client, task))
        })
    }
}
