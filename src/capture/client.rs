//! Queries to the primary, with a time limit and over connections that are kept between them.

use tokio_postgres::{Client, Transaction};

use super::error::CaptureError;
use crate::postgres::{self, ANSWER_TIMEOUT};

/// A connection whose queries all have a time limit: the client is only accessible to a query that
/// is limited.
pub(super) struct LimitedClient(Client);

impl LimitedClient {
    pub async fn connect(url: &str) -> Result<LimitedClient, CaptureError> {
        Ok(LimitedClient(postgres::connect(url).await?))
    }

    /// Runs queries that together have the limit.
    pub async fn run<'a, T, E, Q>(
        &'a self,
        query: impl FnOnce(&'a Client) -> Q,
    ) -> Result<T, CaptureError>
    where
        E: Into<CaptureError>,
        Q: Future<Output = Result<T, E>>,
    {
        let query = query(&self.0);
        in_time(async { query.await.map_err(Into::into) }).await
    }

    pub async fn transaction(&mut self) -> Result<LimitedTransaction<'_>, CaptureError> {
        in_time(async { Ok(LimitedTransaction(self.0.transaction().await?)) }).await
    }
}

/// A transaction of a [`LimitedClient`].
pub(super) struct LimitedTransaction<'a>(Transaction<'a>);

impl<'a> LimitedTransaction<'a> {
    /// Like [`LimitedClient::run`].
    pub async fn run<'b, T, E, Q>(
        &'b self,
        query: impl FnOnce(&'b Transaction<'a>) -> Q,
    ) -> Result<T, CaptureError>
    where
        E: Into<CaptureError>,
        Q: Future<Output = Result<T, E>>,
    {
        let query = query(&self.0);
        in_time(async { query.await.map_err(Into::into) }).await
    }

    pub async fn commit(self) -> Result<(), CaptureError> {
        in_time(async { Ok(self.0.commit().await?) }).await
    }
}

/// A connection that is opened when it is first needed, and again after it was closed.
pub(super) struct KeptClient {
    url: String,
    client: Option<Client>,
    /// The last call of `run` has not succeeded.
    is_unanswered: bool,
}

impl KeptClient {
    pub fn new(url: &str, client: Option<Client>) -> KeptClient {
        KeptClient {
            url: url.to_owned(),
            client,
            is_unanswered: false,
        }
    }

    /// Returns the connection. Opens one if there is none or it was closed.
    pub async fn get(&mut self) -> Result<&Client, CaptureError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => postgres::connect(&self.url).await?,
        };
        Ok(self.client.insert(client))
    }

    /// Runs queries that together have the time limit. Unless they succeed, the next call opens
    /// another connection: this one may be dead. That applies also if the future is dropped.
    pub async fn run<'a, T, E, Q>(
        &'a mut self,
        query: impl FnOnce(&'a Client) -> Q,
    ) -> Result<T, CaptureError>
    where
        E: Into<CaptureError>,
        Q: Future<Output = Result<T, E>>,
    {
        if std::mem::replace(&mut self.is_unanswered, true) {
            self.close();
        }

        self.get().await?;
        let KeptClient {
            client,
            is_unanswered,
            ..
        } = self;
        let query = query(client.as_ref().expect("opened above"));
        let answer = in_time(async { query.await.map_err(Into::into) }).await?;

        *is_unanswered = false;
        Ok(answer)
    }

    /// Closes the connection, for example because it did not answer in time.
    pub fn close(&mut self) {
        self.client = None;
    }

    /// Returns whether there is a connection that the server has not closed.
    pub fn is_open(&self) -> bool {
        self.client
            .as_ref()
            .is_some_and(|client| !client.is_closed())
    }

    /// Returns whether the server has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.client.as_ref().is_some_and(Client::is_closed)
    }
}

/// Runs a query to the primary. Fails if the answer takes longer than [`ANSWER_TIMEOUT`].
pub(super) async fn in_time<T>(
    query: impl Future<Output = Result<T, CaptureError>>,
) -> Result<T, CaptureError> {
    tokio::time::timeout(ANSWER_TIMEOUT, query)
        .await
        .unwrap_or(Err(CaptureError::Silent(ANSWER_TIMEOUT)))
}
