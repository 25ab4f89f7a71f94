//! Connections with settings of their own, such as time limits that the server enforces.

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Error, Socket};

use crate::postgres;
use crate::telemetry::recurring;

/// Settings of a session, by the names of the server's parameters.
pub(super) type SessionSettings = Vec<(&'static str, String)>;

/// Connects with settings, if there are any. They are startup parameters and not a `SET`: behind a
/// pooler in transaction mode, a `SET` would stay with a session that another client gets next.
pub(super) struct Configured<T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static>
where
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    tls: T,
    settings: SessionSettings,
}

impl<T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static> Configured<T>
where
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    pub fn new(tls: T, settings: SessionSettings) -> Self {
        Configured { tls, settings }
    }
}

impl<T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static> Connect for Configured<T>
where
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), Error>> {
        let config = config.clone();
        Box::pin(async move {
            let connect = async |config: &Config| {
                let (client, task, _) = postgres::open(config, self.tls.clone()).await?;
                Ok::<_, Error>((client, task))
            };

            if self.settings.is_empty() {
                return connect(&config).await;
            }

            let mut options = config.get_options().unwrap_or_default().to_owned();

            for (name, value) in &self.settings {
                options.push_str(&format!(" -c {name}={value}"));
            }

            let mut configured = config.clone();
            configured.options(options);

            match connect(&configured).await {
                // A pooler that does not accept these startup parameters.
                Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                    let names: Vec<&str> = self.settings.iter().map(|(name, _)| *name).collect();
                    recurring!(info, %error, settings = names.join(", "), "the store's pooler does not accept settings: set them for the role");
                    connect(&config).await
                }
                result => result,
            }
        })
    }
}
