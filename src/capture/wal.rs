//! Streams the slot's changes and acknowledges what is durable: connecting, again and again, and what one connection does.

mod connection;
mod reader;
mod visibility;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use metrics::gauge;
use pg_walstream::ReplicationError;
use uuid::Uuid;

use super::acknowledgement::{Limit, Said};
use super::decode::Decoder;
use super::error::Gap;
use super::faults::Faults;
use super::gaps::{self, Reports};
use super::heartbeat::Heart;
use super::lag::KnownUntil;
use super::{CaptureError, Context, STAGE, conninfo, identity, primary, slot};
use crate::config::Source;
use crate::domain::change::Batch;
use crate::retry::Backoff;
use crate::store::Store;
use crate::{postgres, telemetry};

pub(super) use connection::Connection;
use reader::Reader;
use visibility::Gate;
pub(super) use visibility::Required;

const RETRIES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Between two looks of a replica that stands by: how long a takeover takes.
const STAND_BY: Duration = Duration::from_secs(1);
/// A connection that held for this long was a good one: the next retry is a first one.
const STABLE: Duration = Duration::from_secs(10);
/// How long the end waits for the store to take the limit back.
const LAST_WRITE: Duration = Duration::from_secs(2);
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// For all that comes before the first change: connecting twice, the checks between, and the start of the stream.
const OPEN_TIMEOUT: Duration = Duration::from_secs(180);

/// Reads until shutdown, until the switch to triggers, or until the primary is on another timeline than it began on. At the
/// switch to triggers, what is left to store comes back, up to that place.
pub(super) async fn run(context: &Context<'_>) -> Result<Option<Batch>, CaptureError> {
    let Context { source, store, health, shutdown, .. } = *context;
    let mut retries = RETRIES;
    let mut faults = Faults::default();
    let acknowledged = Said::default();
    let known_until = KnownUntil::default();
    let _shown = known_until.show(source);
    let timeline = OnceLock::new();
    // What was handed on is refused once another process captures: reading on would be for nothing.
    while !context.batches.is_closed() {
        gauge!(telemetry::CAPTURE_CONNECTED).set(0);
        let begun = Instant::now();
        let reader = Uuid::now_v7();
        let session =
            Session { context, acknowledged: &acknowledged, known_until: &known_until, timeline: &timeline, reader };
        let result = {
            let mut session = std::pin::pin!(session.run(&mut faults));
            let result = shutdown.run_until_cancelled(&mut session).await;
            if result.is_none() {
                // While the slot is still ours, if it is.
                take_limit_back(store, source, reader, &acknowledged).await;
            }
            result
        };
        let error = match result {
            Some(Err(error)) => error,
            Some(Ok(Some(last))) => {
                gauge!(telemetry::CAPTURE_CONNECTED).set(0);
                return Ok(Some(last));
            }
            Some(Ok(None)) | None => break,
        };
        if let Some(gap) = Gap::by_drift(&error) {
            gaps::note(source, store, health, gap).await;
        }
        match error {
            // Another replica captures; this one stands by, which is what it is for.
            CaptureError::SlotActive(_) => {
                health.report_healthy(STAGE);
                known_until.forget();
            }
            _ if error.is_drift() => health.report_unhealthy(STAGE, error.to_string()),
            _ => health.report_unhealthy(STAGE, "changes cannot be read now"),
        }
        if !error.is_transient() && !error.is_drift() {
            gauge!(telemetry::CAPTURE_CONNECTED).set(0);
            return Err(error);
        }
        faults.tell(&error);
        if begun.elapsed() > STABLE {
            retries.reset();
        }
        let standing_by = matches!(error, CaptureError::SlotActive(_));
        let wait = if standing_by { STAND_BY } else { retries.next_wait() };
        if shutdown.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            break;
        }
    }
    gauge!(telemetry::CAPTURE_CONNECTED).set(0);
    Ok(None)
}

/// What lies beyond what was acknowledged is nobody's to acknowledge while we are away.
async fn take_limit_back(store: &Store, source: &Source, reader: Uuid, acknowledged: &Said) {
    let Some(latest) = acknowledged.latest() else { return };
    let lowered = store.lower_acknowledgement_limit(&source.slot, reader, latest);
    if !matches!(tokio::time::timeout(LAST_WRITE, lowered).await, Ok(Ok(true))) {
        tracing::debug!("the limit of acknowledgement stays where it is");
    }
}

/// One connection, from the checks before it to its end.
struct Session<'a> {
    context: &'a Context<'a>,
    acknowledged: &'a Said,
    known_until: &'a KnownUntil,
    /// The timeline that was read from first: what was handed on may still be on its way to the store.
    timeline: &'a OnceLock<u32>,
    /// Fences the limit of acknowledgement.
    reader: Uuid,
}

/// What works beside a stream as long as it is read.
struct Companions {
    heart: Heart,
    gate: Gate,
    limit: Limit,
    reports: Reports,
}

impl Session<'_> {
    /// Ends well when nobody takes batches any more, or with the last batch before the switch to triggers.
    async fn run(&self, faults: &mut Faults) -> Result<Option<Batch>, CaptureError> {
        let Context { source, url, store, health, .. } = *self.context;
        let opened = tokio::time::timeout(OPEN_TIMEOUT, self.open(faults)).await;
        let streamed = match opened.unwrap_or(Err(CaptureError::Silent(OPEN_TIMEOUT))) {
            Ok(mut reader) => reader.run().await,
            Err(error) => Err(error),
        };
        match streamed {
            Err(CaptureError::Replication(error @ ReplicationError::ReplicationSlot(_))) => {
                // Dropped or invalidated since it was verified: the checks say which, and record it.
                let client = postgres::connect(url).await?;
                slot::verify(&client, source, store, health).await?;
                Err(error.into())
            }
            other => other,
        }
    }

    /// Begins to stream.
    async fn open(&self, faults: &mut Faults) -> Result<Reader<'_>, CaptureError> {
        let Context { source, url, store, health, .. } = *self.context;
        self.acknowledged.forget();
        let client = postgres::connect(url).await?;
        let verified = slot::verify(&client, source, store, health).await?;
        let tables = identity::verify(&client, source).await?;
        if primary::slot(&client, &source.slot).await?.is_some_and(|slot| slot.active_pid.is_some()) {
            return Err(CaptureError::SlotActive(source.slot.clone()));
        }
        // Before the slot is ours: who has claimed since then has had it since then.
        let reader_before = store.acknowledgement_reader(&source.slot).await?;
        let conninfo = conninfo::replication(url, &[])?;
        let opened = tokio::time::timeout(START_TIMEOUT, Connection::open(&conninfo)).await;
        let mut stream = opened.map_err(|_| CaptureError::Silent(START_TIMEOUT))??;
        self.stay_on_timeline(&stream)?;
        // Read each time: another process may have captured meanwhile.
        let (checkpoint, history) = slot::enter_timeline(&mut stream, source, store, health).await?;
        let required = Required::new(source.await_visibility);
        if required.depends() {
            required.learn(primary::is_synchronous(&client).await?);
        }
        let started = stream.start(&source.slot, &source.publication, checkpoint.resume);
        let started = tokio::time::timeout(START_TIMEOUT, started).await;
        started.map_err(|_| CaptureError::Silent(START_TIMEOUT))?.map_err(|error| self.start_error(error))?;
        tracing::info!(slot = source.slot, from = %checkpoint.resume, "reading changes");
        faults.are_over();
        health.report_healthy(STAGE);
        gauge!(telemetry::CAPTURE_CONNECTED).set(1);
        // Read only now that nobody else can have the slot: whoever had it may have moved it and raised the limit.
        let confirmed = primary::slot(&client, &source.slot).await?.and_then(|slot| slot.confirmed);
        self.acknowledged.begin(confirmed.unwrap_or_default());
        let Some(stored) = store.claim_acknowledgement(&source.slot, reader_before, self.reader).await? else {
            return Err(CaptureError::SlotActive(source.slot.clone()));
        };
        let (said, period) = (self.acknowledged.clone(), source.heartbeat.0);
        let companions = Companions {
            heart: Heart::start(url, client, source, required.clone(), self.known_until.clone()),
            gate: Gate::start(self.context, stream.lineage().timeline, required),
            limit: Limit::start(store, &source.slot, self.reader, stored, said, period),
            reports: Reports::start(source, store, health),
        };
        let by_socket = conninfo::is_by_socket(url)?;
        let clock_ahead = verified.clock_ahead;
        let decoder = Decoder::new(source, tables, history);
        Ok(Reader::new(stream, companions, self, checkpoint, clock_ahead, by_socket, decoder))
    }

    /// Positions on two timelines mean different changes: batches of the one before are not to be mixed with those of the next,
    /// nor what was looked up for them kept.
    fn stay_on_timeline(&self, stream: &Connection) -> Result<(), CaptureError> {
        let to = stream.lineage().timeline;
        let from = *self.timeline.get_or_init(|| to);
        if from == to { Ok(()) } else { Err(CaptureError::NewTimeline { from, to }) }
    }

    fn start_error(&self, error: ReplicationError) -> CaptureError {
        const OBJECT_IN_USE: &str = "[55006]";
        if error.to_string().contains(OBJECT_IN_USE) {
            return CaptureError::SlotActive(self.context.source.slot.clone());
        }
        error.into()
    }
}
