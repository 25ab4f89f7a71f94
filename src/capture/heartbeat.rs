//! Heartbeats: small commits of our own that must come back through the log. They show that the whole way works, and keep the
//! slot moving where only other databases write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use metrics::histogram;
use postgres_types::PgLsn;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_postgres::Client;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use super::decode::HEARTBEAT;
use super::lag::KnownUntil;
use super::wal::Required;
use super::{CaptureError, identity, primary};
use crate::config::Source;
use crate::domain::lsn::Lsn;
use crate::postgres::{self, ANSWER_TIMEOUT};
use crate::telemetry::{self, Activity};

const EMIT: &str = include_str!("../../sql/primary/heartbeat.sql");
const SHORTEST_PERIOD: Duration = Duration::from_millis(100);
/// What may be under way while the stream is far behind.
const MAX_UNDER_WAY: usize = 1_000;
/// Between two looks at the tables.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);
const EMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How soon it is noticed that the server has ended our connection.
const CLOSED_LOOK: Duration = Duration::from_millis(250);

struct Beat {
    at: Instant,
    /// Where the log has it, once the server has said so.
    lsn: Option<Lsn>,
}

type Fault = Mutex<Option<CaptureError>>;
type Beats = Mutex<HashMap<String, Beat>>;

/// Emits as long as it lives.
pub(super) struct Heart {
    beats: Arc<Beats>,
    fault: Arc<Fault>,
    known_until: KnownUntil,
    _task: AbortOnDropHandle<()>,
}

impl Heart {
    /// With every heartbeat it is learned whether commits wait for a standby.
    pub fn start(url: &str, client: Client, source: &Source, required: Required, known_until: KnownUntil) -> Heart {
        known_until.advance(Instant::now());
        let (beats, fault) = (Arc::new(Beats::default()), Arc::new(Fault::default()));
        let emitter = Emitter { url: url.to_owned(), kept: Some(client), required, beats: Arc::clone(&beats) };
        let task = beat(emitter, source.clone(), Arc::clone(&fault));
        Heart { beats, fault, known_until, _task: AbortOnDropHandle::new(tokio::spawn(task)) }
    }

    /// What the stream itself would not tell: that the server is going down, or that a captured table is gone, not published,
    /// or its old rows are not sent.
    pub fn fault(&self) -> Option<CaptureError> {
        self.fault.lock().expect("no holder of this lock panics").take()
    }

    /// A heartbeat has come back. Those of other processes and earlier connections are not ours to measure.
    pub fn returned(&self, id: &str) {
        if let Some(beat) = lock(&self.beats).remove(id) {
            self.known_until.advance(beat.at);
            histogram!(telemetry::HEARTBEAT_ROUND_TRIP).record(beat.at.elapsed().as_secs_f64());
        }
    }

    /// Whether heartbeats that the stream has passed, at `received`, are overdue. One further on may just be far off, and
    /// one alone may be about to come: its commit stands a little behind it.
    pub fn is_lost(&self, received: Lsn, limit: Duration) -> bool {
        let beats = lock(&self.beats);
        let overdue = beats.values().filter(|beat| beat.at.elapsed() > limit);
        overdue.filter(|beat| beat.lsn.is_some_and(|lsn| lsn < received)).count() > 1
    }
}

fn lock(beats: &Beats) -> MutexGuard<'_, HashMap<String, Beat>> {
    beats.lock().expect("no holder of this lock panics")
}

async fn beat(mut emitter: Emitter, source: Source, fault: Arc<Fault>) {
    let beats = Arc::clone(&emitter.beats);
    let period = source.heartbeat.0.max(SHORTEST_PERIOD);
    let mut looked = Instant::now();
    let session = Uuid::now_v7();
    let sending = Activity::new("sending heartbeats to the primary");
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for number in 0_u64.. {
        due(&mut ticks, emitter.kept.as_ref()).await;
        if lock(&beats).len() >= MAX_UNDER_WAY {
            continue;
        }
        let id = format!("{session}-{number}");
        let emitted = tokio::time::timeout(EMIT_TIMEOUT, emitter.emit(&id)).await;
        let error = match emitted {
            Ok(Ok(())) => None,
            // Whoever reads says so.
            Ok(Err(error)) if error.is_shutdown() => {
                *fault.lock().expect("no holder of this lock panics") = Some(CaptureError::PrimaryStops);
                lock(&beats).remove(&id);
                continue;
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {EMIT_TIMEOUT:?}")),
        };
        if let Some(error) = &error {
            lock(&beats).remove(&id);
            sending.failed(error);
        } else {
            sending.succeeded();
        }
        if error.is_none() && looked.elapsed() >= period.max(SHORTEST_LOOK) {
            looked = Instant::now();
            let Some(client) = emitter.kept.take() else { continue };
            // A connection that does not answer in time is not used again.
            if let Ok(found) = tokio::time::timeout(ANSWER_TIMEOUT, identity::verify(&client, &source)).await {
                let found = found.err().filter(CaptureError::is_drift);
                *fault.lock().expect("no holder of this lock panics") = found;
                emitter.kept = Some(client);
            }
        }
    }
}

/// Returns when the next heartbeat is due, or soon after the server has ended our connection: if it goes down, it waits for
/// the stream to end, and the stream may be waiting for a store on that same server.
async fn due(ticks: &mut Interval, client: Option<&Client>) {
    while tokio::time::timeout(CLOSED_LOOK, ticks.tick()).await.is_err() {
        if client.is_some_and(Client::is_closed) {
            return;
        }
    }
}

/// Sends heartbeats, and reconnects when the connection is lost.
struct Emitter {
    url: String,
    /// Kept only when it has answered.
    kept: Option<Client>,
    required: Required,
    beats: Arc<Beats>,
}

impl Emitter {
    async fn emit(&mut self, id: &str) -> Result<(), CaptureError> {
        let client = match self.kept.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => postgres::connect(&self.url).await?,
        };
        // Before the heartbeat, which may be the first commit to wait for a standby.
        if self.required.depends() {
            self.required.learn(primary::is_synchronous(&client).await?);
        }
        // Known before it is sent: it can come back before its own statement has ended.
        lock(&self.beats).insert(id.to_owned(), Beat { at: Instant::now(), lsn: None });
        let lsn: PgLsn = client.query_one(EMIT, &[&format!("{HEARTBEAT}{id}")]).await?.get(0);
        if let Some(beat) = lock(&self.beats).get_mut(id) {
            beat.lsn = Some(Lsn(lsn.into()));
        }
        self.kept = Some(client);
        Ok(())
    }
}
