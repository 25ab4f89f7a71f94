//! Monitors the triggers and records gaps: failures, and triggers that are missing or changed.
//! Capture continues meanwhile.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use metrics::gauge;
use tokio_postgres::Client;

use super::gaps::GapLog;
use crate::domain::gap::Gap;
use crate::primary::catalog;
use crate::primary::error::{PrimaryError, Result};
use crate::primary::inspect::{Conditions, explained, inspect};
use crate::primary::triggers::catalog::failures;
use crate::sql::primary as sql;
use crate::telemetry;

/// How long to wait for the reason of a failure: it becomes visible when the failed statement's
/// transaction commits.
const EXPLANATION: Duration = Duration::from_secs(2);

pub(crate) struct Watch<'a> {
    gaps: GapLog<'a>,
    /// The gaps that this process has recorded and that are not repaired yet.
    recorded: HashSet<&'static str>,
    /// When a failure without a reason was first seen.
    unexplained: Option<Instant>,
}

impl<'a> Watch<'a> {
    pub fn new(gaps: GapLog<'a>) -> Watch<'a> {
        Watch {
            gaps,
            recorded: HashSet::new(),
            unexplained: None,
        }
    }

    /// Records a gap, unless this process has recorded one of the same kind.
    pub async fn record(&mut self, gap: Gap) -> Result<()> {
        if !self.recorded.insert(gap.reason()) {
            return Ok(());
        }

        let recorded = self.gaps.record(&gap, None).await;
        if recorded.is_err() {
            self.recorded.remove(gap.reason());
        }

        Ok(recorded?)
    }

    /// Records the failures of triggers with the last reason.
    pub async fn record_failures(&mut self, client: &Client) -> Result<()> {
        if self.recorded.contains(Gap::TRIGGER_FAILED) {
            return Ok(());
        }

        let Some((count, last)) = failures(client).await? else {
            return Ok(());
        };

        // The count is visible at once, the reason only when its transaction commits.
        if last.is_none()
            && self.unexplained.get_or_insert_with(Instant::now).elapsed() < EXPLANATION
        {
            return Ok(());
        }

        self.unexplained = None;
        self.record(Gap::TriggersFailed {
            count,
            last: explained(last),
        })
        .await
    }

    /// Inspects every trigger, records gaps, and updates metrics. Rows of the outbox are counted
    /// after `row`. Returns the obstacles that have lost no change yet.
    pub async fn examine(&mut self, client: &Client, row: u64) -> Result<Vec<String>> {
        let found = inspect(client, self.gaps.source, Conditions::Triggers).await?;
        let Some(triggers) = &found.triggers else {
            return Err(PrimaryError::OutboxIsRead);
        };

        if !triggers.state.missing.is_empty() {
            let missing = triggers.state.missing.join(", ");
            return Err(PrimaryError::Gap(Gap::OutboxLost(format!(
                "{missing} is missing"
            ))));
        }

        let losses = found.trigger_losses();
        if !losses.is_empty() {
            self.record(Gap::TriggersLacking(losses.join("; "))).await?;
        }

        if self.gaps.report_open().await?.is_empty() {
            self.recorded.clear();
        }

        let backlog = catalog::outbox_backlog(client, Some(row as i64)).await?;
        gauge!(telemetry::OUTBOX_ROWS).set(backlog.rows as f64);
        gauge!(telemetry::OUTBOX_AGE).set(backlog.age.max(0.0));
        gauge!(telemetry::TRIGGER_FAILURES)
            .set(triggers.failures.as_ref().map_or(0, |(count, _)| *count) as f64);

        Ok(found.trigger_obstacles())
    }
}

/// Resets the triggers' failures. A repair does so before it takes the snapshot with which it
/// compares.
pub(crate) async fn acknowledge(client: &Client) -> Result<()> {
    client
        .query_typed_one(sql::outbox::ACKNOWLEDGE, &[])
        .await?;
    Ok(())
}
