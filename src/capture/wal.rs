//! Streams the slot's changes and acknowledges what is durable: connecting, again and again, and what one connection does.

mod connection;
mod reader;
mod visibility;

use std::time::{Duration, Instant};

use metrics::gauge;
use pg_walstream::ReplicationError;

use super::acknowledgement::{Limit, Said};
use super::error::Gap;
use super::faults::Faults;
use super::gaps::{self, Reports};
use super::heartbeat::Heart;
use super::{CaptureError, Context, STAGE, conninfo, identity, primary, slot};
use crate::config::Source;
use crate::domain::change::Batch;
use crate::store::Store;
use crate::{postgres, telemetry};

pub(super) use connection::Connection;
use reader::Reader;
use visibility::Gate;
pub(super) use visibility::Required;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LONGEST_RETRY: Duration = Duration::from_secs(5);
/// Between two looks of a replica that stands by: how long a takeover takes.
const STAND_BY: Duration = Duration::from_secs(1);
/// A connection that held for this long was a good one: the next retry is a first one.
const STABLE: Duration = Duration::from_secs(10);
/// How long the end waits for the store to take the limit back.
const LAST_WRITE: Duration = Duration::from_secs(2);
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Reads until shutdown or until the switch to triggers: then what is left to store comes back, up to that place.
pub(super) async fn run(context: &Context<'_>) -> Result<Option<Batch>, CaptureError> {
    let Context { source, store, health, shutdown, .. } = *context;
    let mut wait = FIRST_RETRY;
    let mut faults = Faults::default();
    let acknowledged = Said::default();
    loop {
        gauge!(telemetry::CAPTURE_CONNECTED).set(0);
        let begun = Instant::now();
        let session = Session { context, acknowledged: &acknowledged };
        let result = {
            let mut session = std::pin::pin!(session.run(&mut faults));
            let result = shutdown.run_until_cancelled(&mut session).await;
            if result.is_none() {
                // While the slot is still ours, so that nobody else has raised it.
                take_limit_back(store, source, &acknowledged).await;
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
            CaptureError::SlotActive(_) => health.recover(STAGE),
            _ if error.is_drift() => health.ail(STAGE, error.to_string()),
            _ => health.ail(STAGE, "changes cannot be read now"),
        }
        if !error.is_transient() && !error.is_drift() {
            gauge!(telemetry::CAPTURE_CONNECTED).set(0);
            return Err(error);
        }
        if matches!(error, CaptureError::SlotActive(_)) {
            wait = STAND_BY;
        }
        faults.tell(&error);
        if begun.elapsed() > STABLE {
            wait = FIRST_RETRY;
        }
        if shutdown.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            break;
        }
        wait = (wait * 2).min(LONGEST_RETRY);
    }
    gauge!(telemetry::CAPTURE_CONNECTED).set(0);
    Ok(None)
}

/// What lies beyond what was acknowledged is nobody's to acknowledge while we are away.
async fn take_limit_back(store: &Store, source: &Source, acknowledged: &Said) {
    let Some(latest) = acknowledged.latest() else { return };
    let written = tokio::time::timeout(LAST_WRITE, store.set_acknowledgement_limit(&source.slot, latest)).await;
    if !matches!(written, Ok(Ok(()))) {
        tracing::debug!("the limit of acknowledgement stays where it is");
    }
}

/// One connection, from the checks before it to its end.
struct Session<'a> {
    context: &'a Context<'a>,
    acknowledged: &'a Said,
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
        match self.stream(faults).await {
            Err(CaptureError::Replication(error @ ReplicationError::ReplicationSlot(_))) => {
                // Dropped or invalidated since it was verified: the checks say which, and record it.
                let client = postgres::connect(url).await?;
                slot::verify(&client, source, store, health).await?;
                Err(error.into())
            }
            other => other,
        }
    }

    async fn stream(&self, faults: &mut Faults) -> Result<Option<Batch>, CaptureError> {
        let Context { source, url, store, health, .. } = *self.context;
        self.acknowledged.forget();
        let client = postgres::connect(url).await?;
        let verified = slot::verify(&client, source, store, health).await?;
        let tables = identity::verify(&client, source).await?;
        // Read anew each time: another process may have captured meanwhile.
        let mut checkpoint = verified.checkpoint;
        if primary::slot(&client, &source.slot).await?.is_some_and(|slot| slot.active_pid.is_some()) {
            return Err(CaptureError::SlotActive(source.slot.clone()));
        }
        let conninfo = conninfo::replication(url, &[])?;
        let opened = tokio::time::timeout(START_TIMEOUT, Connection::open(&conninfo)).await;
        let mut stream = opened.map_err(|_| CaptureError::Silent(START_TIMEOUT))??;
        checkpoint.lineage = match slot::lineage(&mut stream, &checkpoint).await {
            Err(CaptureError::Gap(gap)) => {
                let at = Some(checkpoint.resume);
                return Err(gaps::record(source, store, health, gap, at).await);
            }
            other => other?,
        };
        let required = Required::new(source.await_visibility);
        if required.depends() {
            required.learn(primary::is_synchronous(&client).await?);
        }
        let started = stream.start(&source.slot, &source.publication, checkpoint.resume);
        let started = tokio::time::timeout(START_TIMEOUT, started).await;
        started.map_err(|_| CaptureError::Silent(START_TIMEOUT))?.map_err(|error| self.start_error(error))?;
        tracing::info!(slot = source.slot, from = %checkpoint.resume, "reading changes");
        faults.are_over();
        health.recover(STAGE);
        gauge!(telemetry::CAPTURE_CONNECTED).set(1);
        // Read only now that nobody else can have the slot: whoever had it may have moved it and raised the limit.
        let confirmed = primary::slot(&client, &source.slot).await?.and_then(|slot| slot.confirmed);
        self.acknowledged.begin(confirmed.unwrap_or_default());
        let stored = store.acknowledgement_limit(&source.slot).await?;
        let (said, period) = (self.acknowledged.clone(), source.heartbeat.0);
        let companions = Companions {
            heart: Heart::start(url, client, source, required.clone()),
            gate: Gate::start(self.context, stream.lineage().timeline, required),
            limit: Limit::start(store, &source.slot, stored, said, period),
            reports: Reports::start(source, store, health),
        };
        let by_socket = conninfo::is_by_socket(url)?;
        let mut reader = Reader::new(stream, companions, self, checkpoint, verified.clock_ahead, by_socket, tables);
        reader.run().await
    }

    fn start_error(&self, error: ReplicationError) -> CaptureError {
        const OBJECT_IN_USE: &str = "[55006]";
        if error.to_string().contains(OBJECT_IN_USE) {
            return CaptureError::SlotActive(self.context.source.slot.clone());
        }
        error.into()
    }
}
