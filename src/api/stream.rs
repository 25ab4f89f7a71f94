//! The feed as a stream of Server-Sent Events. A stream holds at most one page, reads the next one
//! when the client has taken it, and costs no query while nothing happens.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use tokio::time::{Instant, sleep, sleep_until};

use super::feed_reader::{EventBody, Reader};
use super::state::ApiState;
use crate::domain::event::UserId;
use crate::http::problem::Problem;
use crate::http::{Occupied, Parked};
use crate::manage::feed::{FeedPosition, Follower};
use crate::manage::{Event, FeedFilter, FeedPageSize};
use crate::store::cancel_on_drop;

/// The most that a stream holds in memory, except that one event may be larger: 2,048 slow clients
/// hold 128 MiB.
const PAGE: FeedPageSize = FeedPageSize {
    events: 100,
    bytes: 64 << 10,
};
/// Shows proxies and clients that the connection works. Usual proxies close silent connections
/// after 60 seconds.
pub const COMMENT_INTERVAL: Duration = Duration::from_secs(15);
/// How long clients wait before they connect again, in milliseconds.
pub const RECONNECT_AFTER: u32 = 1_000;
/// After a failed read. The stream stays open: browsers give up for good if a new connection is
/// answered with an error.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Whether a token of the platform has expired.
pub async fn is_expired(state: &ApiState, token: Option<&str>) -> bool {
    match (token, state.auth.jwt()) {
        (Some(token), Some(verifier)) => matches!(verifier.user(token).await, Ok(Err(_))),
        _ => false,
    }
}

/// An open stream.
struct EventStream {
    state: ApiState,
    user: UserId,
    token: Option<Box<str>>,
    filter: FeedFilter,
    follower: Follower,
    _parked: Option<Parked>,
    /// Up to where the feed was read.
    position: FeedPosition,
    /// The last cursor that the client received. None at the beginning.
    sent: Option<FeedPosition>,
    has_more: bool,
    comment_at: Instant,
}

/// Starts a stream after `position`.
pub fn respond(
    state: ApiState,
    reader: Reader,
    filter: FeedFilter,
    position: FeedPosition,
) -> Result<Response, Problem> {
    let follower = state.manage().follow_feed(&reader.user, reader.access)?;
    let stream = EventStream {
        _parked: reader.occupied.as_ref().map(Occupied::park),
        state,
        user: reader.user,
        token: reader.token,
        filter,
        follower,
        position,
        sent: None,
        has_more: true,
        comment_at: Instant::now() + COMMENT_INTERVAL,
    };

    let chunks = unfold(stream, async |mut stream| {
        let chunk = stream.next().await?;
        Some((Ok::<_, Infallible>(chunk), stream))
    });

    let content_type = (header::CONTENT_TYPE, "text/event-stream");

    // Otherwise nginx collects the stream in a buffer.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), "no");
    Ok(([content_type, unbuffered], Body::from_stream(chunks)).into_response())
}

impl EventStream {
    /// Waits for the next part. None ends the stream: the service shuts down, or the client's
    /// access has ended.
    async fn next(&mut self) -> Option<Bytes> {
        if self.sent.is_none() {
            let cursor = self.cursor();
            return Some(format!("retry: {RECONNECT_AFTER}\n{cursor}\n").into());
        }

        loop {
            if self.state.closed().is_cancelled() || self.follower.is_revoked() {
                return None;
            }

            if Instant::now() >= self.comment_at {
                return self.comment().await;
            }

            if self.has_more
                && let Some(events) = self.read().await
            {
                return Some(events);
            }

            if !self.has_more {
                self.wait().await;
            }
        }
    }

    /// Waits until there may be events, or something else is to be done.
    async fn wait(&mut self) {
        tokio::select! {
            () = self.state.closed().cancelled() => {}
            () = self.follower.woken() => self.has_more = true,
            () = sleep_until(self.comment_at) => {}
        }
    }

    /// Reads a page. None if it is empty.
    async fn read(&mut self) -> Option<Bytes> {
        let read = self
            .state
            .manage()
            .feed_page(&self.user, &self.filter, self.position, PAGE);
        match cancel_on_drop(read).await {
            Ok(page) => {
                (self.position, self.has_more) = (page.next, page.more);
                let last = page.events.last().map(FeedPosition::after)?;
                self.sent = Some(last);

                Some(
                    page.events
                        .into_iter()
                        .map(|event| self.render(event))
                        .collect::<String>()
                        .into(),
                )
            }
            Err(fault) => {
                // Logs the fault.
                let _ = Problem::from(fault);
                sleep(AFTER_FAILURE).await;
                None
            }
        }
    }

    /// Returns a comment, and the cursor if it has moved: a filtered stream may read far without an
    /// event. None if the client's token has expired.
    async fn comment(&mut self) -> Option<Bytes> {
        self.comment_at = Instant::now() + COMMENT_INTERVAL;

        if is_expired(&self.state, self.token.as_deref()).await {
            return None;
        }

        let cursor = if self.sent == Some(self.position) {
            String::new()
        } else {
            self.cursor()
        };

        Some(format!(": keep-alive\n{cursor}\n").into())
    }

    /// Returns the line that sets the client's `Last-Event-ID`. A block without data is no event.
    fn cursor(&mut self) -> String {
        self.sent = Some(self.position);
        format!("id: {}\n", self.position)
    }

    fn render(&self, event: Event) -> String {
        let cursor = FeedPosition::after(&event);
        let kind = event.kind.clone();
        let Ok(Ok(body)) = EventBody::try_from(event).map(|body| serde_json::to_string(&body))
        else {
            return format!("id: {cursor}\n\n");
        };

        // In JSON, line breaks occur only between tokens. In a stream, they would end the field.
        let body = body.replace(['\n', '\r'], " ");
        // The id comes last: some clients remember it at once, and would resume after an event that was
        // cut off behind it.
        format!("event: {kind}\ndata: {body}\nid: {cursor}\n\n")
    }
}
