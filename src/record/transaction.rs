//! The transaction that records a batch of attempts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::superseded::{Superseded, superseded};
use crate::domain::delivery::{Delivery, Lease, Next};
use crate::domain::disablement::{Policy, Verdict};
use crate::domain::event::UserId;
use crate::domain::webhook::{Failure, Tally};
use crate::failpoint::failpoint;
use crate::postgres::ANSWER_TIMEOUT;
use crate::store::audit::{self, Action, Actor, Via};
use crate::store::disable::{self, Failing};
use crate::store::order::{self, PromotionLease};
use crate::store::record::{
    AttemptRow, CompletedAttempt, Counters, count_webhooks, end_deliveries, end_leased,
    insert_attempts, lock_leased, retry_deliveries,
};
use crate::store::{Result, Store, Transaction, hours, plan_by_index};

/// The effects of recording a batch.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// For each attempt, whether it was made under its delivery's current lease. Others change
    /// neither delivery nor counters.
    pub counted: Vec<bool>,
    /// For each attempt, whether nothing is left to do for it: it was counted, or its delivery was
    /// redelivered or cancelled in the meantime. The delivery of any other is not stored yet, or
    /// another replica has claimed it.
    pub settled: Vec<bool>,
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

/// Records attempts in one transaction. An attempt whose lease another replica has taken over
/// changes nothing; one whose delivery was redelivered or cancelled in the meantime is logged, and
/// updates only when its webhook was last called. Disables webhooks that have reached the threshold
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
    // The lease ends here first: the database reads its clock later.
    let lease = promotion.map(
        |PromotionLimits {
             lease_length: length,
             max_bytes,
         }| PromotionLease {
            lease: Lease {
                token: Uuid::now_v7(),
                until: Instant::now() + length,
            },
            length,
            max_bytes,
        },
    );
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
    let Superseded {
        settled,
        logged: late,
    } = superseded(transaction, attempts, &counted).await?;
    let attempts: Vec<CompletedAttempt<'_>> = attempts
        .iter()
        .zip(&counted)
        .filter_map(|(attempt, counted)| counted.then_some(*attempt))
        .collect();
    let logged = [attempts.as_slice(), &late].concat();
    let mut disabled = Vec::new();
    let mut promoted = Vec::new();

    if !logged.is_empty() {
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
            tokio::try_join!(biased; end, write(transaction, held, &logged, &tallies))?;
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
        settled,
        disabled,
        promoted,
    })
}

/// Inserts the log's rows, schedules the retries of `held` and counts for the webhooks. Returns the
/// new counters.
async fn write(
    transaction: &Transaction<'_>,
    held: &[CompletedAttempt<'_>],
    logged: &[CompletedAttempt<'_>],
    tallies: &BTreeMap<Uuid, Tally>,
) -> Result<Vec<Counters>> {
    let rows: Vec<AttemptRow<'_>> = logged.iter().map(|attempt| attempt.row).collect();

    // Every transaction locks webhooks before their hours.
    let count = async {
        let counters = count_webhooks(transaction, tallies).await?;
        hours::add(transaction, logged).await?;
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

    order::promote(transaction, &ended.filter_map(key).collect(), lease).await
}

/// Returns the changes that the batch makes to each webhook. Attempts in `late` are superseded and
/// do not count.
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
            disable::warn(transaction, failing).await?;
        } else if let Some(user) = disable::disable(transaction, failing).await? {
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
