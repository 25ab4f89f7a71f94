//! Heartbeats: small commits that must come back through the stream. They show that the stream
//! works, and advance the slot while only other databases write.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use metrics::histogram;
use parking_lot::Mutex;
use postgres_types::PgLsn;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::decode::HEARTBEAT;
use super::tables;
use super::visibility::VisibilityPolicy;
use crate::capture::client::KeptClient;
use crate::capture::context::CaptureContext;
use crate::capture::error::CaptureError;
use crate::capture::session::ReadUntil;
use crate::config::Source;
use crate::domain::lsn::{Lineage, Lsn};
use crate::postgres::{ANSWER_TIMEOUT, Target};
use crate::primary::{catalog, lineage};
use crate::repair::gaps::GapLog;
use crate::sql::primary as sql;
use crate::store::Store;
use crate::telemetry::health::Health;
use crate::telemetry::{self, Activity};

const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// The most heartbeats that may be in flight, while the stream is far behind.
const MAX_IN_FLIGHT: usize = 1_000;
/// The least time between two checks of the tables.
const SHORTEST_CHECK: Duration = Duration::from_secs(1);
const EMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How soon a connection that the server has closed is noticed.
const CLOSED_POLL: Duration = Duration::from_millis(250);
/// How long the stream's host may take to reject a connection. A server that stops rejects it at
/// once; one that is frozen does not answer, and other hosts of the URL must then be tried within
/// [`EMIT_TIMEOUT`].
const REJECTION_TIMEOUT: Duration = Duration::from_secs(2);

struct Beat {
    sent_at: Instant,
    /// Its LSN, once the server has returned it.
    lsn: Option<Lsn>,
}

/// The state that the sending task and the stream share.
#[derive(Default)]
struct HeartbeatState {
    in_flight: Mutex<HashMap<String, Beat>>,
    error: Mutex<Option<CaptureError>>,
}

/// Sends heartbeats until it is dropped.
pub(super) struct Heartbeats {
    shared: Arc<HeartbeatState>,
    read_until: ReadUntil,
    _task: AbortOnDropHandle<()>,
}

impl Heartbeats {
    /// Starts the sending task for a stream of `lineage` from `host`. With every heartbeat it
    /// updates `policy` with the server's settings.
    pub fn start(
        context: &CaptureContext<'_>,
        host: Target,
        lineage: Lineage,
        policy: VisibilityPolicy,
        read_until: ReadUntil,
    ) -> Heartbeats {
        read_until.advance(Instant::now());
        let shared = Arc::new(HeartbeatState::default());
        let client = KeptClient::new(context.url, None);
        let source = context.source.clone();
        let store = context.store.clone();
        let health = context.health.clone();

        let sender = HeartbeatSender {
            host,
            client,
            source,
            store,
            health,
            lineage,
            policy,
            shared: Arc::clone(&shared),
        };

        Heartbeats {
            shared,
            read_until,
            _task: AbortOnDropHandle::new(tokio::spawn(sender.run())),
        }
    }

    /// Takes an error that the stream itself does not report: the server shuts down, or a captured
    /// table is gone, unpublished or without its replica identity.
    pub fn take_error(&self) -> Option<CaptureError> {
        self.shared.error.lock().take()
    }

    /// Records that a heartbeat has come back. Those of other processes and earlier connections are
    /// ignored.
    pub fn returned(&self, id: &str) {
        if let Some(beat) = self.shared.in_flight.lock().remove(id) {
            self.read_until.advance(beat.sent_at);
            histogram!(telemetry::HEARTBEAT_ROUND_TRIP)
                .record(beat.sent_at.elapsed().as_secs_f64());
        }
    }

    /// Returns whether heartbeats are lost: not returned within `limit`, although the stream has
    /// received the WAL beyond them, up to `received`. One such heartbeat may be about to arrive,
    /// because its commit record follows its LSN: it takes two.
    pub fn are_lost(&self, received: Lsn, limit: Duration) -> bool {
        let in_flight = self.shared.in_flight.lock();
        let overdue = in_flight
            .values()
            .filter(|beat| beat.sent_at.elapsed() > limit);
        overdue
            .filter(|beat| beat.lsn.is_some_and(|lsn| lsn < received))
            .count()
            > 1
    }
}

/// Sends heartbeats, and reconnects when the connection is lost.
struct HeartbeatSender {
    /// The host of the stream.
    host: Target,
    /// To any host of the URL, so that a new primary is noticed while the stream's server is
    /// frozen. Closed when it does not answer.
    client: KeptClient,
    source: Source,
    store: Store,
    health: Health,
    /// The cluster and the timeline of the stream.
    lineage: Lineage,
    policy: VisibilityPolicy,
    shared: Arc<HeartbeatState>,
}

impl HeartbeatSender {
    async fn run(mut self) {
        let period = self.source.heartbeat.0.max(SHORTEST_PERIOD);
        let mut checked_at = Instant::now();
        let session = Uuid::now_v7();
        let sending = Activity::new("sending heartbeats to the primary");
        let mut ticks = tokio::time::interval(period);

        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

        for number in 0_u64.. {
            self.wait_until_due(&mut ticks).await;

            if self.shared.in_flight.lock().len() >= MAX_IN_FLIGHT {
                continue;
            }

            let id = format!("{session}-{number}");
            let sent = tokio::time::timeout(EMIT_TIMEOUT, self.send(&id)).await;

            let error = match sent {
                Ok(Ok(true)) => None,
                Ok(Ok(false)) => {
                    sending.failed(&"an earlier heartbeat waits for a synchronous standby");
                    continue;
                }
                // The reader ends the stream and reports it. On a new timeline, the stream's server
                // may be frozen: nothing else notices before the limit of its silence.
                Ok(Err(error)) if error.ends_stream() => {
                    *self.shared.error.lock() = Some(error);
                    self.forget(&id);
                    continue;
                }
                Ok(Err(error)) => {
                    error.count_disk_fault();
                    Some(error.to_string())
                }
                Err(_) => {
                    self.policy.set_synchronous(true);
                    Some(format!("no answer within {EMIT_TIMEOUT:?}"))
                }
            };

            if let Some(error) = error {
                self.forget(&id);
                sending.failed(&error);
                continue;
            }

            sending.succeeded();

            if checked_at.elapsed() >= period.max(SHORTEST_CHECK) {
                checked_at = Instant::now();
                self.check_tables().await;
            }
        }
    }

    /// Returns when the next heartbeat is due, or soon after the server has closed the connection:
    /// a server that shuts down waits for the stream to end, and the stream may be waiting for a
    /// store on the same server.
    async fn wait_until_due(&self, ticks: &mut Interval) {
        while tokio::time::timeout(CLOSED_POLL, ticks.tick())
            .await
            .is_err()
        {
            if self.client.is_closed() {
                return;
            }
        }
    }

    /// Returns false if it sent none, because an earlier one waits for a standby. That one's
    /// connection stays open on the server for as long as the standby is down, and one for each
    /// heartbeat would soon be all that the server accepts.
    async fn send(&mut self, id: &str) -> Result<bool, CaptureError> {
        if !self.client.is_open() && self.is_stopping().await {
            return Err(CaptureError::PrimaryStops);
        }

        let client = self.client.get().await?;

        // Before the heartbeat: it may be the first commit that waits for a standby. The settings
        // of another server than the stream's would open or close the gate for the wrong
        // transactions.
        let catalog::Commits {
            lineage,
            synchronous,
        } = catalog::commits(client, self.lineage).await?;
        verify(lineage, self.lineage)?;
        self.policy.set_synchronous(synchronous);

        if synchronous
            && client
                .query_typed_one(sql::slot::HEARTBEAT_WAITS, &[])
                .await?
                .get(0)
        {
            return Ok(false);
        }

        // Recorded before it is sent: it can come back before its statement has ended.
        self.shared.in_flight.lock().insert(
            id.to_owned(),
            Beat {
                sent_at: Instant::now(),
                lsn: None,
            },
        );

        let emitted = client
            .query_one(sql::slot::EMIT_HEARTBEAT, &[&format!("{HEARTBEAT}{id}")])
            .await;

        // Its commit may have waited for a standby, because the setting has changed since it was
        // read.
        let row = emitted.inspect_err(|_| self.policy.set_synchronous(true))?;
        let (lsn, timeline): (PgLsn, &str) = (row.get("lsn"), row.get("timeline"));
        let timeline = u32::from_str_radix(timeline, 16).unwrap_or(self.lineage.timeline);

        // Again: a pooler may have connected to another server. What is sent there never comes
        // back, and must not count as lost.
        verify(
            Lineage {
                timeline,
                ..self.lineage
            },
            self.lineage,
        )?;

        if let Some(beat) = self.shared.in_flight.lock().get_mut(id) {
            beat.lsn = Some(Lsn(lsn.into()));
        }

        Ok(true)
    }

    /// Returns whether the stream's server starts or stops. With several hosts in the URL, the
    /// error of another one could hide it.
    async fn is_stopping(&self) -> bool {
        let connected = tokio::time::timeout(REJECTION_TIMEOUT, self.host.connect()).await;
        matches!(connected, Ok(Err(error)) if error.is_starting_or_stopping())
    }

    fn forget(&mut self, id: &str) {
        self.shared.in_flight.lock().remove(id);
        self.client.close();
    }

    async fn check_tables(&mut self) {
        let Ok(client) = self.client.get().await else {
            return;
        };

        let verified = tables::verify(client, GapLog::new(&self.source, &self.store, &self.health));
        match tokio::time::timeout(ANSWER_TIMEOUT, verified).await {
            Ok(verified) => {
                *self.shared.error.lock() = verified.err().filter(CaptureError::is_drift);
            }
            Err(_) => self.client.close(),
        }
    }
}

/// Verifies that a server of lineage `found` has the timeline of the stream.
fn verify(found: Lineage, stream: Lineage) -> Result<(), CaptureError> {
    lineage::verify(found, stream)?;

    if found.timeline > stream.timeline {
        return Err(CaptureError::TimelineChanged);
    }

    Ok(())
}
