//! The state of an installation, for operators. Each database is read by itself, so that one is
//! shown while the other does not answer.

use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use crate::capture;
use crate::config::{CaptureMode, Config};
use crate::domain::delivery::DeliveryClass;
use crate::postgres;
use crate::primary::catalog::{self, OutboxBacklog, SlotLag};
use crate::store::checkpoint::OpenGap;
use crate::store::ignored::IgnoredTransitions;
use crate::store::observe::{Extent, Queue, WebhookStates};
use crate::store::processes::Process;
use crate::store::unrouted::UnroutedCount;
use crate::store::{Store, migrate, notices};

/// Counting stops here: to an operator, more make no difference.
pub const MOST: i64 = 100_000;
/// How long a database may take. Counting takes a second or two.
const LIMIT: Duration = Duration::from_secs(25);

#[derive(Debug, Serialize)]
pub struct Status {
    /// Of the program that shows the state.
    pub version: &'static str,
    pub at: Timestamp,
    /// A count of this many means: or more.
    pub counted_to: i64,
    /// The databases that could not be read, and why.
    pub errors: Vec<Unreadable>,
    pub primary: Option<Primary>,
    /// None if no log is read, or if it could not be read.
    pub log: Option<Log>,
    pub store: Option<Stored>,
}

#[derive(Debug, Serialize)]
pub struct Unreadable {
    pub database: &'static str,
    pub error: String,
}

/// What the primary knows.
#[derive(Debug, Serialize)]
pub struct Primary {
    /// None if it is missing, and with trigger capture.
    pub slot: Option<SlotLag>,
    /// None with WAL capture.
    pub outbox: Option<OutboxBacklog>,
}

/// What the log's store knows.
#[derive(Debug, Serialize)]
pub struct Log {
    /// The number of its last event.
    pub last_event: u64,
}

/// What the store knows.
#[derive(Debug, Serialize)]
pub struct Stored {
    pub database: String,
    pub size_bytes: i64,
    pub schema_version: i32,
    pub processes: Vec<Process>,
    /// None before setup.
    pub checkpoint: Option<Checkpoint>,
    pub gaps: Vec<OpenGap>,
    pub first_attempts: Queue,
    pub retries: Queue,
    pub webhooks: WebhookStates,
    pub unrouted: UnroutedCount,
    /// Transitions that raised no event, by the reason.
    pub ignored_transitions: Vec<IgnoredTransitions>,
    /// E-mails that are still to be sent.
    pub notices: i64,
}

#[derive(Debug, Serialize)]
pub struct Checkpoint {
    pub position: String,
    /// The number of the log's event that was stored last. None if no log is read.
    pub log_event: Option<u64>,
    /// Seconds since it last moved.
    pub age_seconds: f64,
}

/// Reads the state of both databases.
pub async fn read(config: &Config) -> Status {
    let (primary, log, store) = tokio::join!(
        in_time(read_primary(config)),
        in_time(read_log(config)),
        in_time(read_store(config))
    );

    let mut errors = Vec::new();
    let primary = readable("primary", primary, &mut errors).flatten();
    let log = readable("log", log, &mut errors).flatten();
    let store = readable("store", store, &mut errors);

    Status {
        version: env!("CARGO_PKG_VERSION"),
        at: Timestamp::now(),
        counted_to: MOST,
        errors,
        primary,
        log,
        store,
    }
}

async fn in_time<T>(read: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let read = tokio::time::timeout(LIMIT, read).await;
    read.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {LIMIT:?}")))
}

fn readable<T>(
    database: &'static str,
    read: anyhow::Result<T>,
    errors: &mut Vec<Unreadable>,
) -> Option<T> {
    read.map_err(|error| {
        errors.push(Unreadable {
            database,
            error: error.to_string(),
        });
    })
    .ok()
}

async fn read_primary(config: &Config) -> anyhow::Result<Option<Primary>> {
    let connect = async || Ok::<_, anyhow::Error>(postgres::connect(config.source_url()?).await?);

    Ok(match config.source.capture {
        CaptureMode::Wal => Some(Primary {
            slot: catalog::slot_lag(&connect().await?, &config.source.slot).await?,
            outbox: None,
        }),
        CaptureMode::Trigger => Some(Primary {
            slot: None,
            outbox: Some(catalog::outbox_backlog(&connect().await?, None).await?),
        }),
        CaptureMode::Log => None,
    })
}

async fn read_log(config: &Config) -> anyhow::Result<Option<Log>> {
    if config.source.capture != CaptureMode::Log {
        return Ok(None);
    }

    let log = capture::log::open(config.capture_url()?)?;
    Ok(Some(Log {
        last_event: log.last_event().await?,
    }))
}

async fn read_store(config: &Config) -> anyhow::Result<Stored> {
    let url = config.store_url()?;
    let slot = &config.source.slot;
    let store = Store::open(url, 1)?;
    let database = store.identity().await?.database;

    let schema = migrate::schema(url).await?;
    if let Some(problem) = schema.incompatibility() {
        anyhow::bail!("{problem}");
    }

    let position = store.checkpoint(slot).await?;
    let age_seconds = store.checkpoint_age(slot).await?;
    let checkpoint = position
        .zip(age_seconds)
        .map(|(checkpoint, age_seconds)| Checkpoint {
            position: checkpoint.progress.to_string(),
            log_event: checkpoint.progress.log().map(|log| log.number),
            age_seconds,
        });

    Ok(Stored {
        database,
        size_bytes: store.size().await?,
        schema_version: schema.version(),
        processes: store.processes(slot).await?,
        checkpoint,
        gaps: store.open_gaps(slot).await?,
        first_attempts: queue(&store, DeliveryClass::Fresh).await?,
        retries: queue(&store, DeliveryClass::Retry).await?,
        webhooks: store.webhook_states(Extent::Until(MOST)).await?,
        unrouted: store.count_unrouted(MOST).await?,
        ignored_transitions: store.ignored_transitions().await?,
        notices: notices::count_pending(&store).await?,
    })
}

async fn queue(store: &Store, class: DeliveryClass) -> anyhow::Result<Queue> {
    let counted = store.queue(class, Extent::Until(MOST)).await?;
    let oldest_due = store.oldest_due(class).await?;
    Ok(Queue {
        oldest_due,
        ..counted
    })
}
