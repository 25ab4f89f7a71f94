//! Webhooks that keep failing are switched off, or their owners warned, in the transaction that counts the failures.

use std::collections::{BTreeMap, BTreeSet};

use deadpool_postgres::Transaction;
use tokio_postgres::Row;
use uuid::Uuid;

use super::audit::{self, Action, Actor, Via};
use super::record::Entry;
use super::{Result, webhooks};
use crate::domain::disablement::{Policy, Standing, Verdict};
use crate::domain::event::UserId;
use crate::domain::webhook::{Failure, Tally};

const LOCK: &str = include_str!("../../sql/store/delivery_lock_with.sql");
const DISABLE: &str = include_str!("../../sql/store/webhook_disable.sql");
const WARN: &str = include_str!("../../sql/store/webhook_warn.sql");

/// A webhook that has been switched off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disabled {
    pub webhook: Uuid,
    pub user: UserId,
    pub failure: Failure,
}

/// A webhook that a batch has counted failures of, and what is to follow.
pub(super) struct Judged {
    pub webhook: Uuid,
    pub verdict: Verdict,
    failure: Failure,
    /// Held against the threshold.
    failures: u64,
}

/// What follows for the webhooks whose counters are now those of `rows`: nothing, for almost all and almost always.
pub(super) fn judge(rows: &[Row], tallies: &BTreeMap<Uuid, Tally>, policy: &Policy) -> Vec<Judged> {
    let judged = rows.iter().filter_map(|row| {
        let webhook: Uuid = row.get("id");
        let failure = tallies.get(&webhook)?.last_failure?;
        let standing = standing(row);
        let verdict = policy.judge(&standing);
        Some(Judged { webhook, verdict, failure, failures: policy.count(&standing) })
    });
    judged.filter(|judged| judged.verdict != Verdict::Nothing).collect()
}

fn standing(row: &Row) -> Standing {
    let number = |name: &str| u64::try_from(row.get::<_, i64>(name)).unwrap_or(0);
    Standing {
        active: row.get("active"),
        failures: number("failure_count"),
        consecutive_failures: number("consecutive_failures"),
        failing_since: row.get("failing_since"),
        warned_at: row.get("warned_at"),
        now: row.get("counted_at"),
    }
}

/// Holds everything that is pending for `webhooks`, with the batch's own deliveries.
pub(super) async fn lock(
    transaction: &Transaction<'_>,
    entries: &[Entry<'_>],
    webhooks: &BTreeSet<Uuid>,
) -> Result<()> {
    let statement = transaction.prepare_cached(LOCK).await?;
    let deliveries: Vec<Uuid> = entries.iter().map(|entry| entry.line.attempted.delivery.id).collect();
    let webhooks: Vec<Uuid> = webhooks.iter().copied().collect();
    transaction.execute(&statement, &[&deliveries, &webhooks]).await?;
    Ok(())
}

/// Does what was judged, and says which webhooks are switched off by it.
pub(super) async fn apply(transaction: &Transaction<'_>, judged: &[Judged], policy: &Policy) -> Result<Vec<Disabled>> {
    let mut disabled = Vec::new();
    for judged in judged {
        match judged.verdict {
            Verdict::Nothing => {}
            Verdict::Warn => {
                judged.tell(transaction, WARN, policy).await?;
            }
            Verdict::Disable => {
                let Some(user) = judged.tell(transaction, DISABLE, policy).await? else { continue };
                webhooks::cancel_deliveries(transaction, judged.webhook, "the webhook was disabled automatically")
                    .await?;
                let actor = Actor { user, via: Via::Automatic };
                audit::record(transaction, &actor, Action::WebhookDisabled, judged.webhook, &["active"]).await?;
                disabled.push(Disabled { webhook: judged.webhook, user: actor.user, failure: judged.failure });
            }
        }
    }
    Ok(disabled)
}

impl Judged {
    /// Changes the webhook and leaves a notice, by `statement`. Gives the webhook's user.
    async fn tell(&self, transaction: &Transaction<'_>, statement: &str, policy: &Policy) -> Result<Option<UserId>> {
        let statement = transaction.prepare_cached(statement).await?;
        let (description, kind) = (self.failure.describe(), self.failure.kind.as_str());
        let (failures, threshold) = (self.failures as i64, i64::from(policy.threshold));
        let row = transaction
            .query_opt(&statement, &[&self.webhook, &description, &kind, &Uuid::now_v7(), &failures, &threshold])
            .await?;
        Ok(row.map(|row| UserId(row.get::<_, &str>("user_id").into())))
    }
}
