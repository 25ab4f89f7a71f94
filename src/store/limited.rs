//! Connections with time limits that the server enforces.

use std::time::Duration;

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Error, Socket};

use crate::postgres;
use crate::telemetry::recurring;

/// Time limits of a session, by the names of the server's parameters.
pub(super) type SessionLimits = Vec<(&'static str, Duration)>;

/// Connects with time limits, if there are any. They are startup parameters and not a `SET`: behind a pooler in transaction
/// mode, a `SET` would stay with a session that another client gets next.
pub(super) struct Limited<T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static>
where
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    tls: T,
    limits: SessionLimits,
}

impl<T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static> Limited<T>
where
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    pub fn new(tls: T, limits: SessionLimits) -> Self {
        Limited { tls, limits }
    }
}

impl<T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static> Connect for Limited<T>
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
            if self.limits.is_empty() {
                return connect(&config).await;
            }
            let mut options = config.get_options().unwrap_or_default().to_owned();
            for (name, limit) in &self.limits {
                options.push_str(&format!(" -c {name}={}", limit.as_millis()));
            }
            let mut limited = config.clone();
            limited.options(options);
            match connect(&limited).await {
                // A pooler that does not accept these startup parameters.
                Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                    recurring!(info, %error, "the store's pooler does not accept statement_timeout and idle_in_transaction_session_timeout: set them for the role");
                    connect(&config).await
                }
                result => result,
            }
        })
    }
}
