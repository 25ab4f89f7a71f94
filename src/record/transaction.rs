//! The transaction that records a batch of attempts.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::delivery::{Delivery, Next};
use crate::domain::disablement::{Policy, Verdict};
use crate::domain::event::UserId;
use crate::domain::webhook::{Failure, Tally};
use crate::failpoint::failpoint;
use crate::postgres::ANSWER_TIMEOUT;
use crate::store::attempt::{
    self, AttemptRow, CompletedAttempt, Counters, Failing, count_webhooks, end_deliveries,
    end_leased, hold_webhooks, insert_attempts, insert_missing_attempts, lock_leased,
    retry_deliveries,
};
use crate::store::audit::{self, Action, Actor, Via};
use crate::store::delivery::{self, NewLease, PromotionLease};
use crate::store::{Result, Store, Transaction, hours, plan_by_index};

/// The effects of recording a batch.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// For each attempt, whether it was made under its delivery's current lease. Others are late
    /// and change neither delivery nor counters.
    pub counted: Vec<bool>,
    /// Webhooks that were disabled.
    pub disabled: Vec<Disabled>,
    /// Deliveries that waited for one that has ended. They are leased to this process.
    pub promoted: Vec<Delivery>,
}

/// A webhook that was disabled because it kept failing or its receiver is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disabled {
    pub webhook: Uuid,
    pub user: UserId,
    /// See [`Failing::error_kind`].
    pub error_kind: &'static str,
    /// The reason, for the server log.
    pub reason: String,
}

/// The limits of what is leased to this process when the deliveries before it end.
#[derive(Clone, Copy, Debug)]
pub struct PromotionLimits {
    pub lease_length: Duration,
    /// The most bytes of event data.
    pub max_bytes: usize,
}

/// Records attempts in one transaction. Every request that was sent is logged. An attempt whose
/// lease has ended is late, because another replica has taken over its delivery, or it was
/// redelivered or cancelled in the meantime: it updates only when its webhook was last called.
/// Disables webhooks that have reached the threshold
/// of `policy` or whose receiver is gone, and warns owners at half of the threshold. What a
/// disabled webhook has pending is cancelled afterwards (`cancellation.rs`), because there is no
/// limit to it. Deliveries that waited for those that end are leased within the limits of
/// `promotion`; if it is `None`, they are due for any replica.
pub async fn record(
    store: &Store,
    attempts: &[CompletedAttempt<'_>],
    policy: &Policy,
    promotion: Option<PromotionLimits>,
) -> Result<Recorded> {
    let lease = promotion.map(|limits| PromotionLease {
        lease: NewLease::starting_now(limits.lease_length),
        max_bytes: limits.max_bytes,
    });

    store
        .in_time(ANSWER_TIMEOUT, record_once(store, attempts, policy, lease))
        .await
}

async fn record_once(
    store: &Store,
    attempts: &[CompletedAttempt<'_>],
    policy: &Policy,
    lease: Option<PromotionLease>,
) -> Result<Recorded> {
    let mut connection = store.connection().await?;
    let transaction = connection.transaction().await?;
    let recorded = record_in(&transaction, attempts, policy, lease).await?;

    failpoint!("attempts_written_record_not_committed")?;
    transaction.commit().await?;
    failpoint!("record_committed_answer_not_received")?;

    Ok(recorded)
}

async fn record_in(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'_>],
    policy: &Policy,
    lease: Option<PromotionLease>,
) -> Result<Recorded> {
    // The common case: all attempts succeed.
    let all_end = attempts
        .iter()
        .all(|attempt| matches!(attempt.next, Next::End(_)));
    let fence = async {
        if all_end {
            end_leased(transaction, attempts).await
        } else {
            lock_leased(transaction, attempts).await
        }
    };

    let ((), counted) = tokio::try_join!(biased; plan_by_index(transaction), fence)?;
    let (attempts, late): (Vec<_>, Vec<_>) = attempts
        .iter()
        .zip(&counted)
        .partition(|(_, counted)| **counted);
    let attempts: Vec<_> = attempts.into_iter().map(|(attempt, _)| *attempt).collect();
    let late = log_late(transaction, late.into_iter().map(|(late, _)| *late)).await?;
    let mut disabled = Vec::new();
    let mut promoted = Vec::new();

    if !attempts.is_empty() || !late.is_empty() {
        let tallies = tallies(&attempts, &late);
        let held = if all_end { &[] } else { attempts.as_slice() };
        let end = async {
            // Not sent together: a promotion must not see the deliveries that end. If all end, they
            // were removed above.
            end_deliveries(transaction, held).await?;
            promote(transaction, &attempts, lease).await
        };

        let counters;
        (promoted, counters) =
            tokio::try_join!(biased; end, write(transaction, held, &attempts, &late, &tallies))?;
        disabled = apply(transaction, &judge(&counters, &tallies, policy)).await?;

        // Their deliveries are cancelled.
        promoted.retain(|delivery| {
            disabled
                .iter()
                .all(|disabled| disabled.webhook != delivery.webhook)
        });
    }

    Ok(Recorded {
        counted,
        disabled,
        promoted,
    })
}

/// Logs late attempts, and returns those that were not logged before: when a commit's answer is
/// lost, all attempts of the batch are late the next time. Leaves out attempts that sent nothing,
/// such as those of an inactive webhook, whose cancellation is logged, and the attempts of webhooks
/// that no longer exist: their user may have been erased.
async fn log_late<'a>(
    transaction: &Transaction<'_>,
    late: impl Iterator<Item = CompletedAttempt<'a>>,
) -> Result<Vec<CompletedAttempt<'a>>> {
    let mut late: Vec<_> = late
        .filter(|late| late.row.attempted.attempt.sent.is_some())
        .map(CompletedAttempt::without_effect)
        .collect();
    if late.is_empty() {
        return Ok(late);
    }

    let webhooks: Vec<Uuid> = late.iter().map(|late| late.delivery().webhook).collect();
    let existing = hold_webhooks(transaction, &webhooks).await?;
    late.retain(|late| existing.contains(&late.delivery().webhook));

    let rows: Vec<AttemptRow<'_>> = late.iter().map(|late| late.row).collect();
    let inserted = insert_missing_attempts(transaction, &rows).await?;
    late.retain(|late| inserted.contains(&late.row.id));

    Ok(late)
}

/// Inserts the log's rows, schedules the retries of `held` and counts for the webhooks. Returns the
/// new counters.
async fn write(
    transaction: &Transaction<'_>,
    held: &[CompletedAttempt<'_>],
    attempts: &[CompletedAttempt<'_>],
    late: &[CompletedAttempt<'_>],
    tallies: &BTreeMap<Uuid, Tally>,
) -> Result<Vec<Counters>> {
    let rows: Vec<AttemptRow<'_>> = attempts.iter().map(|attempt| attempt.row).collect();

    // Every transaction locks webhooks before their hours.
    let count = async {
        let counters = count_webhooks(transaction, tallies).await?;
        hours::add(transaction, &[attempts, late].concat()).await?;
        Ok(counters)
    };

    // Pipelined in this order: if one fails, its error is the first, and those of the others follow
    // from it.
    let ((), (), counters) = tokio::try_join!(
        biased;
        insert_attempts(transaction, &rows),
        retry_deliveries(transaction, held),
        count,
    )?;

    Ok(counters)
}

/// Makes the deliveries due that waited for those that have ended.
async fn promote(
    transaction: &Transaction<'_>,
    attempts: &[CompletedAttempt<'_>],
    lease: Option<PromotionLease>,
) -> Result<Vec<Delivery>> {
    let ended = attempts
        .iter()
        .filter(|attempt| matches!(attempt.next, Next::End(_)));
    let key = |attempt: &CompletedAttempt<'_>| {
        Some((attempt.delivery().webhook, attempt.delivery().order_key?))
    };

    delivery::promote(transaction, &ended.filter_map(key).collect(), lease).await
}

/// Returns the changes that the batch makes to each webhook. Attempts in `late` do not count.
fn tallies(
    attempts: &[CompletedAttempt<'_>],
    late: &[CompletedAttempt<'_>],
) -> BTreeMap<Uuid, Tally> {
    let mut tallies: BTreeMap<Uuid, Tally> = BTreeMap::new();

    for attempt in attempts {
        tallies
            .entry(attempt.delivery().webhook)
            .or_default()
            .add(&attempt.row.attempted.attempt);
    }

    for attempt in late {
        tallies
            .entry(attempt.delivery().webhook)
            .or_default()
            .add_uncounted(&attempt.row.attempted.attempt);
    }

    tallies.retain(|_, tally| !tally.is_empty());
    tallies
}

/// Returns the webhooks to disable, and those whose owners to warn. Usually none.
fn judge(
    counters: &[Counters],
    tallies: &BTreeMap<Uuid, Tally>,
    policy: &Policy,
) -> Vec<(Verdict, Failing)> {
    let judged = counters
        .iter()
        .filter_map(|Counters { webhook, standing }| {
            let tally = tallies.get(webhook)?;
            let last_failure = tally.last_failure?;
            let is_gone = policy.disables_gone(standing, tally.is_gone);
            let (verdict, failure) = match is_gone {
                true => (Verdict::Disable, Failure::GONE),
                false => (policy.judge(standing), last_failure),
            };

            let failures = policy.count(standing);
            let threshold = policy.threshold;

            Some((
                verdict,
                Failing {
                    webhook: *webhook,
                    failure,
                    is_gone,
                    failures,
                    threshold,
                },
            ))
        });

    judged
        .filter(|(verdict, _)| *verdict != Verdict::Nothing)
        .collect()
}

/// Warns owners and disables webhooks. Returns the webhooks that were disabled.
async fn apply(
    transaction: &Transaction<'_>,
    judged: &[(Verdict, Failing)],
) -> Result<Vec<Disabled>> {
    let mut disabled = Vec::new();

    for (verdict, failing) in judged {
        if *verdict == Verdict::Warn {
            attempt::warn(transaction, failing).await?;
        } else if let Some(user) = attempt::disable(transaction, failing).await? {
            let webhook = failing.webhook;
            let actor = Actor {
                user,
                via: Via::Automatic,
            };

            let action = Action::WebhookDisabled;
            audit::record(transaction, &actor, action, webhook, &["active"]).await?;

            let error_kind = failing.error_kind();
            let reason = failing.describe();
            disabled.push(Disabled {
                webhook,
                user: actor.user,
                error_kind,
                reason,
            });
        }
    }

    Ok(disabled)
}
