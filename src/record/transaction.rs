//! The transaction that records a batch of attempts.

use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::domain::delivery::Delivery;
use crate::domain::disablement::{Policy, Verdict};
use crate::domain::event::UserId;
use crate::domain::webhook::{LastFailure, Tally};
use crate::failpoint::failpoint;
use crate::store::attempt::{
    self, CompletedAttempt, Counters, Effect, Failing, count_webhooks, end_deliveries, fence,
    insert_attempts, log_superseded, retry_deliveries,
};
use crate::store::audit::{self, Action, Actor, Via};
use crate::store::delivery::{self, NewLease, PromotionLease};
use crate::store::{Result, Store, StoreError, Transaction, hours, plan_by_index};

/// The effects of recording a batch.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
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

/// Records attempts in one transaction, and sets the [`Effect`] of each. Disables webhooks that have
/// reached the threshold of `policy` or whose receiver is gone, and warns owners at half of the
/// threshold. What a disabled webhook has pending is cancelled afterwards (`cancellation.rs`),
/// because there is no limit to it. Deliveries that waited for those that end are leased within the
/// limits of `promotion`; if it is `None`, they are due for any replica.
pub async fn record(
    store: &Store,
    batch: &mut [CompletedAttempt],
    policy: &Policy,
    promotion: Option<PromotionLimits>,
) -> Result<Recorded> {
    let lease = promotion.map(|limits| PromotionLease {
        lease: NewLease::starting_now(limits.lease_length),
        max_bytes: limits.max_bytes,
    });

    let recorded = store.transaction(async |transaction| {
        let recorded = record_in(transaction, batch, policy, lease).await?;
        failpoint!("attempts_written_record_not_committed")?;
        Ok::<_, StoreError>(recorded)
    });
    let recorded = recorded.await?;
    failpoint!("record_committed_answer_not_received")?;

    Ok(recorded)
}

async fn record_in(
    transaction: &Transaction<'_>,
    batch: &mut [CompletedAttempt],
    policy: &Policy,
    lease: Option<PromotionLease>,
) -> Result<Recorded> {
    // The common case: all attempts succeed.
    let all_end = batch.iter().all(CompletedAttempt::ends_delivery);
    tokio::try_join!(
        biased;
        plan_by_index(transaction),
        fence(transaction, batch, all_end),
    )?;
    log_superseded(transaction, batch).await?;

    let logged: Vec<&CompletedAttempt> = batch
        .iter()
        .filter(|attempt| attempt.effect != Effect::NotStored)
        .collect();
    if logged.is_empty() {
        return Ok(Recorded::default());
    }

    let counted: Vec<&CompletedAttempt> = logged
        .iter()
        .copied()
        .filter(|attempt| attempt.is_counted())
        .collect();
    let tallies = tallies(&logged);

    // Not sent together: a promotion must not see the deliveries that end.
    let end = async {
        if !all_end {
            end_deliveries(transaction, &counted).await?;
        }

        promote(transaction, &counted, lease).await
    };

    // Every transaction locks webhooks before their hours.
    let count = async {
        let counters = count_webhooks(transaction, &tallies).await?;
        hours::add(transaction, &logged).await?;
        Ok(counters)
    };

    // Pipelined in this order: if one fails, its error is the first, and those of the others follow
    // from it.
    let (mut promoted, (), (), counters) = tokio::try_join!(
        biased;
        end,
        insert_attempts(transaction, &counted),
        retry_deliveries(transaction, &counted),
        count,
    )?;
    let disabled = apply(transaction, &judge(&counters, &tallies, policy)).await?;

    // Their deliveries are cancelled.
    promoted.retain(|delivery| {
        disabled
            .iter()
            .all(|disabled| disabled.webhook != delivery.webhook)
    });

    Ok(Recorded { disabled, promoted })
}

/// Makes the deliveries due that waited for those that have ended.
async fn promote(
    transaction: &Transaction<'_>,
    counted: &[&CompletedAttempt],
    lease: Option<PromotionLease>,
) -> Result<Vec<Delivery>> {
    let ended = counted.iter().filter(|attempt| attempt.ends_delivery());
    let key = |attempt: &&CompletedAttempt| {
        Some((attempt.delivery().webhook, attempt.delivery().order_key?))
    };

    delivery::promote(transaction, &ended.filter_map(key).collect(), lease).await
}

/// Returns the changes that logged attempts make to each webhook.
fn tallies(logged: &[&CompletedAttempt]) -> BTreeMap<Uuid, Tally> {
    let mut tallies: BTreeMap<Uuid, Tally> = BTreeMap::new();

    for completed in logged {
        let tally = tallies.entry(completed.delivery().webhook).or_default();
        let attempt = &completed.attempted.attempt;

        if completed.is_counted() {
            tally.add(attempt);
        } else {
            tally.add_uncounted(attempt);
        }
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
    let judge = |Counters { webhook, standing }: &Counters| {
        let tally = tallies.get(webhook)?;
        let last_failure = tally.last_failure?;
        let is_gone = policy.disables_gone(standing, tally.is_gone);
        let (verdict, failure) = match is_gone {
            true => (Verdict::Disable, LastFailure::GONE),
            false => (policy.judge(standing), last_failure),
        };

        let failing = Failing {
            webhook: *webhook,
            failure,
            is_gone,
            failures: policy.count(standing),
            threshold: policy.threshold,
        };

        Some((verdict, failing)).filter(|_| verdict != Verdict::Nothing)
    };

    counters.iter().filter_map(judge).collect()
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
            audit::record(
                transaction,
                &actor,
                Action::WebhookDisabled,
                webhook,
                &["active"],
            )
            .await?;

            disabled.push(Disabled {
                webhook,
                user: actor.user,
                error_kind: failing.error_kind(),
                reason: failing.describe(),
            });
        }
    }

    Ok(disabled)
}
