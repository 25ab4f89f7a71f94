//! Connections with a `statement_timeout`.

use std::time::Duration;

use deadpool_postgres::Connect;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Error, Socket};

use crate::postgres;
use crate::telemetry::recurring;

/// Connects with a `statement_timeout`, if there is one. It is a startup parameter and not a `SET`: behind a pooler in transaction
/// mode, a `SET` would stay with a session that another client gets next.
pub(super) struct Limited<T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static>
where
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    tls: T,
    statement_timeout: Option<Duration>,
}

impl<T: MakeTlsConnect<Socket> + Clone + Sync + Send + 'static> Limited<T>
where
    T::Stream: Sync + Send,
    T::TlsConnect: Sync + Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    pub fn new(tls: T, statement_timeout: Option<Duration>) -> Self {
        Limited { tls, statement_timeout }
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
            let Some(timeout) = self.statement_timeout else { return connect(&config).await };
            let mut limited = config.clone();
            let options = config.get_options().unwrap_or_default();
            limited.options(format!("{options} -c statement_timeout={}", timeout.as_millis()));
            match connect(&limited).await {
                // A pooler that does not accept this startup parameter.
                Err(error) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => {
                    recurring!(info, %error, "the store's pooler does not accept statement_timeout: set it for the role");
                    connect(&config).await
                }
                result => result,
            }
        })
    }
}
