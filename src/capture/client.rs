//! Queries to the primary over a connection that is kept between them.

use tokio_postgres::Client;

use super::error::CaptureError;
use crate::postgres::{self, ANSWER_TIMEOUT};

/// A connection that is opened when it is first needed, and again after it was closed.
pub(super) struct KeptClient {
    url: String,
    client: Option<Client>,
}

impl KeptClient {
    pub fn new(url: &str, client: Option<Client>) -> KeptClient {
        KeptClient { url: url.to_owned(), client }
    }

    /// Returns the connection. Opens one if there is none or it was closed.
    pub async fn get(&mut self) -> Result<&Client, CaptureError> {
        let client = match self.client.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => postgres::connect(&self.url).await?,
        };
        Ok(self.client.insert(client))
    }

    /// Closes the connection, for example because it did not answer in time.
    pub fn close(&mut self) {
        self.client = None;
    }

    /// Returns whether there is a connection that the server has not closed.
    pub fn is_open(&self) -> bool {
        self.client.as_ref().is_some_and(|client| !client.is_closed())
    }

    /// Returns whether the server has closed the connection.
    pub fn is_closed(&self) -> bool {
        self.client.as_ref().is_some_and(Client::is_closed)
    }
}

/// Runs a query to the primary. Fails if the answer takes longer than [`ANSWER_TIMEOUT`].
pub(super) async fn in_time<T>(query: impl Future<Output = Result<T, CaptureError>>) -> Result<T, CaptureError> {
    tokio::time::timeout(ANSWER_TIMEOUT, query).await.unwrap_or(Err(CaptureError::Silent(ANSWER_TIMEOUT)))
}
