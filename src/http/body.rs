//! The bytes of request bodies, within limits on size and time.

use std::error::Error;
use std::future::ready;
use std::iter::successors;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use futures_util::StreamExt;
use futures_util::stream::once;
use http_body_util::BodyExt;
use tokio::sync::OwnedSemaphorePermit;

use super::problem::Problem;
use crate::config::MAX_BODY_BYTES;

const RECEIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// What each connection may hold of a body: more than most bodies have.
const UNRESERVED_BYTES: usize = 16 << 10;
/// The bytes of an oversized body that are read and discarded. A client that is still sending may
/// not read the response.
const MAX_DISCARDED_BYTES: usize = 8 << 20;

/// Returns the body, which `receive` has received, if it has up to `limit` bytes.
pub async fn read(body: Body, limit: usize) -> Result<Bytes, Problem> {
    let bytes = body.collect().await.map_err(problem)?.to_bytes();
    if bytes.len() > limit {
        Err(Problem::content_too_large(limit))
    } else {
        Ok(bytes)
    }
}

/// Receives a whole body before a handler reads it, so that no request in progress waits for its
/// client. Of a body that is too large for every handler, only the beginning is kept. If the body
/// does not arrive, the handler that reads it gets the problem.
///
/// `reserve` is called once if the body takes more memory than any connection may, with the bytes
/// that it may take. Its permit is held until the body is dropped.
pub async fn receive(
    body: Body,
    reserve: impl AsyncFnOnce(usize) -> Result<OwnedSemaphorePermit, Problem>,
) -> Body {
    let received = tokio::time::timeout(RECEIVE_TIMEOUT, beginning(body, reserve)).await;
    match received.unwrap_or_else(|_| Err(Problem::body_timeout())) {
        Ok(received) => Body::from(Bytes::from_owner(received)),
        Err(problem) => Body::from_stream(once(ready(Err::<Bytes, _>(problem)))),
    }
}

/// A body in memory.
#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    /// That of a large body.
    permit: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body to its end. Returns at most one byte more than handlers accept.
async fn beginning(
    body: Body,
    reserve: impl AsyncFnOnce(usize) -> Result<OwnedSemaphorePermit, Problem>,
) -> Result<Received, Problem> {
    let length = body
        .size_hint()
        .exact()
        .and_then(|length| usize::try_from(length).ok());
    let most = length.unwrap_or(usize::MAX).min(MAX_BODY_BYTES + 1);
    let mut frames = body.into_data_stream();
    let mut received = Received::default();
    let mut discarded = 0;
    let mut reserve = Some(reserve);

    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(problem)?;
        let kept = frame.len().min(most - received.bytes.len());
        if received.bytes.len() + kept > UNRESERVED_BYTES
            && let Some(reserve) = reserve.take()
        {
            received.permit = Some(reserve(most).await?);
            received.bytes.reserve_exact(most - received.bytes.len());
        }

        received.bytes.extend_from_slice(&frame[..kept]);
        discarded += frame.len() - kept;

        if discarded > MAX_DISCARDED_BYTES {
            break;
        }
    }

    Ok(received)
}

/// Returns the problem among the causes of an error.
fn problem(error: axum::Error) -> Problem {
    let causes = successors(Some(&error as &(dyn Error + 'static)), |error| {
        (*error).source()
    });

    let known = causes
        .filter_map(|error| error.downcast_ref::<Problem>())
        .next();
    known.cloned().unwrap_or_else(Problem::unreadable_body)
}
