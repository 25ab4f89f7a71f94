//! New entries of the delivery logs as a stream of Server-Sent Events.
//!
//! Entries become visible when their attempts end, not in the order of their ids: each look at the
//! store covers the last minute, and entries that were sent are remembered for as long.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;
use jiff::{SignedDuration, Timestamp};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::feed_reader::Reader;
use super::logs::LogEntryBody;
use super::state::ApiState;
use super::stream::{COMMENT_INTERVAL, RECONNECT_AFTER, is_expired};
use crate::domain::event::UserId;
use crate::http::problem::Problem;
use crate::http::{Occupied, Parked};
use crate::manage::feed::Follower;
use crate::manage::{Entry, LogFilter, LogScope, OperationPermit};
use crate::store::cancel_on_drop;

/// Between two looks at the store.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longer than an attempt and its recording take, unless the store does not answer.
const WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// An open stream.
struct Tail {
    state: ApiState,
    user: UserId,
    token: Option<Box<str>>,
    scope: LogScope,
    filter: LogFilter,
    /// Ends the stream when the client's access ends, and counts it.
    follower: Follower,
    _permit: OperationPermit<UserId>,
    _parked: Option<Parked>,
    /// The entries of the last minute that the client knows. None before the first look: entries of
    /// before are not sent.
    seen: Option<HashSet<Uuid>>,
    is_greeted: bool,
    comment_at: Instant,
}

/// Starts a stream.
pub fn respond(
    state: ApiState,
    reader: Reader,
    scope: LogScope,
    filter: LogFilter,
) -> Result<Response, Problem> {
    let manage = state.manage();
    let permit = manage.begin_tail(&reader.user)?;
    let follower = manage.follow_feed(&reader.user, reader.access)?;
    let tail = Tail {
        _parked: reader.occupied.as_ref().map(Occupied::park),
        _permit: permit,
        state,
        user: reader.user,
        token: reader.token,
        scope,
        filter,
        follower,
        seen: None,
        is_greeted: false,
        comment_at: Instant::now() + COMMENT_INTERVAL,
    };

    let chunks = unfold(tail, async |mut tail| {
        let chunk = tail.next().await?;
        Some((Ok::<_, Infallible>(chunk), tail))
    });
    let content_type = (header::CONTENT_TYPE, "text/event-stream");

    // Otherwise nginx collects the stream in a buffer.
    let unbuffered = (HeaderName::from_static("x-accel-buffering"), "no");
    Ok(([content_type, unbuffered], Body::from_stream(chunks)).into_response())
}

impl Tail {
    /// Waits for the next part. None ends the stream: the service shuts down, or the client's access
    /// has ended.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.state.closed().is_cancelled() || self.follower.is_revoked() {
                return None;
            }

            let is_first = self.seen.is_none();
            if let Some(entries) = self.look().await {
                return Some(entries);
            }

            // Only now: what is logged after the client has read this is sent.
            if is_first && self.seen.is_some() && !self.is_greeted {
                self.is_greeted = true;
                return Some(format!("retry: {RECONNECT_AFTER}\n: following\n\n").into());
            }

            if Instant::now() >= self.comment_at {
                self.comment_at = Instant::now() + COMMENT_INTERVAL;
                let is_expired = is_expired(&self.state, self.token.as_deref()).await;
                return (!is_expired).then(|| ": keep-alive\n\n".into());
            }

            tokio::select! {
                () = self.state.closed().cancelled() => {}
                () = sleep(INTERVAL) => {}
            }
        }
    }

    /// Reads the entries of the last minute, and renders those that are new. None if there are none.
    async fn look(&mut self) -> Option<Bytes> {
        let since = Timestamp::now() - WINDOW;
        let manage = self.state.manage();
        let read = manage.newest_logs(&self.user, &self.scope, &self.filter, since);

        match cancel_on_drop(read).await {
            Ok((entries, has_more)) => {
                let ids = entries.iter().map(|entry| entry.id).collect();
                let seen = self.seen.replace(ids)?;

                let is_cut = has_more && entries.iter().all(|entry| !seen.contains(&entry.id));
                let mut new: Vec<Entry> = entries
                    .into_iter()
                    .filter(|entry| !seen.contains(&entry.id))
                    .collect();
                new.reverse();

                let skipped = if is_cut {
                    "event: skipped\ndata: {}\n\n"
                } else {
                    ""
                };
                let blocks: String = new.into_iter().map(render).collect();
                (!blocks.is_empty()).then(|| format!("{skipped}{blocks}").into())
            }
            Err(fault) => {
                // Logs the fault.
                let _ = Problem::from(fault);
                None
            }
        }
    }
}

fn render(entry: Entry) -> String {
    let id = entry.id;
    let body =
        serde_json::to_string(&LogEntryBody::from(entry)).expect("an entry is representable");
    format!("event: entry\ndata: {body}\nid: {id}\n\n")
}
