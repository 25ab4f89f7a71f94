//! Looks after the triggers: what failed, what is gone or was changed. Each is a gap: capture goes on for the rest.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use metrics::gauge;
use tokio_postgres::Client;

use super::gaps;
use crate::config::Source;
use crate::domain::gap::Gap;
use crate::health::Health;
use crate::primary::error::PrimaryError;
use crate::primary::inspect::{Conditions, explained, inspect};
use crate::primary::triggers::catalog::failures;
use crate::store::Store;
use crate::telemetry;

const BACKLOG: &str = include_str!("../../sql/primary/outbox_backlog.sql");
const ACKNOWLEDGE: &str = include_str!("../../sql/primary/outbox_acknowledge.sql");

/// How long a failure may be without its reason before it is told without.
const EXPLANATION: Duration = Duration::from_secs(2);

pub(crate) struct Watch<'a> {
    pub source: &'a Source,
    pub store: &'a Store,
    pub health: &'a Health,
    /// What was recorded by this process and is not known to be repaired.
    told: HashSet<&'static str>,
    /// Since when a trigger has failed whose reason is not there, or not yet.
    unexplained: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub fn new(source: &'a Source, store: &'a Store, health: &'a Health) -> Watch<'a> {
        Watch { source, store, health, told: HashSet::new(), unexplained: None }
    }

    pub async fn record(&mut self, gap: Gap) -> Result<(), PrimaryError> {
        if !self.told.insert(gap.reason()) {
            return Ok(());
        }
        let reason = gap.reason();
        match gaps::record(self.source, self.store, self.health, gap, None).await {
            PrimaryError::Gap(_) => Ok(()),
            error => {
                self.told.remove(reason);
                Err(error)
            }
        }
    }

    /// A trigger has failed: says which and why.
    pub async fn failed(&mut self, client: &Client) -> Result<(), PrimaryError> {
        if self.told.contains(Gap::TRIGGER_FAILED) {
            return Ok(());
        }
        let Some((count, last)) = failures(client).await? else { return Ok(()) };
        // The count is seen at once, the reason when its transaction commits.
        if last.is_none() && self.unexplained.get_or_insert_with(Instant::now).elapsed() < EXPLANATION {
            return Ok(());
        }
        self.unexplained = None;
        self.record(Gap::TriggersFailed { count, last: explained(last) }).await
    }

    /// Looks at every trigger, and at the gaps that are still open.
    pub async fn examine(&mut self, client: &Client) -> Result<(), PrimaryError> {
        let found = inspect(client, self.source, Conditions::Triggers).await?;
        let Some(triggers) = &found.triggers else { return Err(PrimaryError::OutboxIsRead) };
        if !triggers.state.missing.is_empty() {
            let missing = triggers.state.missing.join(", ");
            return Err(PrimaryError::Gap(Gap::OutboxLost(format!("{missing} is missing"))));
        }
        let faults = found.trigger_faults();
        if !faults.is_empty() {
            self.record(Gap::TriggersLacking(faults.join("; "))).await?;
        }
        if gaps::tell(self.source, self.store, self.health).await?.is_empty() {
            self.told.clear();
        }
        let row = client.query_typed_one(BACKLOG, &[]).await?;
        gauge!(telemetry::OUTBOX_ROWS).set(row.get::<_, i64>("rows") as f64);
        gauge!(telemetry::OUTBOX_AGE).set(row.get::<_, f64>("age").max(0.0));
        gauge!(telemetry::TRIGGER_FAILURES).set(triggers.failures.as_ref().map_or(0, |(count, _)| *count) as f64);
        Ok(())
    }
}

/// Forgets the triggers' failures so far: for a repair, before it takes the snapshot that it compares with.
pub(crate) async fn acknowledge(client: &Client) -> Result<(), PrimaryError> {
    client.query_typed_one(ACKNOWLEDGE, &[]).await?;
    Ok(())
}
