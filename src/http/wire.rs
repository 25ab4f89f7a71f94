//! A connection that records whether its client takes what is written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::net::TcpStream;

use super::clients::ClientConnection;
use crate::io::{Observed, Observer};

/// The stream of a client.
pub type Watched = Observed<TcpStream, Arc<ClientConnection>>;

impl Observer for Arc<ClientConnection> {
    fn took(&mut self, some: bool) {
        ClientConnection::took(self, some);
    }

    /// hyper flushes after it has written everything that it holds.
    fn flushed(&mut self) {
        ClientConnection::flushed(self);
    }
}

/// The body of a response, which is dropped when all of it was passed on to be written.
pub struct Produced {
    pub body: Body,
    pub client: Arc<ClientConnection>,
}

impl HttpBody for Produced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Produced {
    fn drop(&mut self) {
        self.client.produced();
    }
}
