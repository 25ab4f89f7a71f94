//! One delivery, with its attempts and what comes next.

use uuid::Uuid;

use super::fault::{Fault, Result};
use super::feed::{DeliveryState, FeedPosition};
use super::service::Manage;
use crate::domain::event::{UserId, delivered_event};
use crate::store::deliveries::{self, DeliveredEvent, NextAttempt, StoredDelivery, TimedEntry};

/// A delivery as its webhook's owner sees it.
#[derive(Clone, Debug)]
pub struct DeliveryDetail {
    pub id: Uuid,
    pub webhook: Uuid,
    pub event: Uuid,
    /// None if the event has expired.
    pub event_detail: Option<DeliveredEvent>,
    pub state: DeliveryState,
    pub sequence: Option<i64>,
    /// The newest attempts and cancellations, the newest first.
    pub attempts: Vec<TimedEntry>,
    /// None if the delivery has ended.
    pub next: Option<NextAttempt>,
    recovered: Vec<i16>,
}

/// What started a round of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundOrigin {
    /// The event, or a replay.
    Event,
    Test,
    /// The owner, for this delivery alone.
    Redelivery,
    Recovery,
}

impl RoundOrigin {
    pub const ALL: [RoundOrigin; 4] = [
        RoundOrigin::Event,
        RoundOrigin::Test,
        RoundOrigin::Redelivery,
        RoundOrigin::Recovery,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            RoundOrigin::Event => "event",
            RoundOrigin::Test => "test",
            RoundOrigin::Redelivery => "redelivery",
            RoundOrigin::Recovery => "recovery",
        }
    }
}

impl DeliveryDetail {
    pub fn kind(&self) -> &str {
        match (&self.event_detail, self.attempts.first()) {
            (Some(event), _) => &event.kind,
            (None, Some(attempt)) => &attempt.entry.event_kind,
            (None, None) => "",
        }
    }

    pub fn is_test(&self) -> bool {
        self.attempts
            .first()
            .is_some_and(|attempt| attempt.entry.test)
    }

    /// The rounds of the attempts and of the next one, the newest first.
    pub fn rounds(&self) -> Vec<(i16, RoundOrigin)> {
        let next = self.next.iter().map(|next| next.round);
        let attempts = self.attempts.iter().map(|attempt| attempt.entry.round);
        let mut rounds: Vec<i16> = next.chain(attempts).collect();

        rounds.sort_unstable_by(|left, right| right.cmp(left));
        rounds.dedup();
        rounds
            .into_iter()
            .map(|round| (round, self.origin(round)))
            .collect()
    }

    fn origin(&self, round: i16) -> RoundOrigin {
        match round {
            1 if self.is_test() => RoundOrigin::Test,
            1 => RoundOrigin::Event,
            round if self.recovered.contains(&round) => RoundOrigin::Recovery,
            _ => RoundOrigin::Redelivery,
        }
    }

    /// The place in the feed before the event. None if there is no such place any more.
    pub fn feed_position(&self) -> Option<FeedPosition> {
        let sequence = self.event_detail.as_ref()?.sequence?;
        Some(FeedPosition::before(sequence))
    }
}

impl Manage {
    /// Returns a delivery of the user's webhook with its newest attempts.
    pub async fn delivery(
        &self,
        user: &UserId,
        webhook: Uuid,
        delivery: Uuid,
    ) -> Result<DeliveryDetail> {
        let found = deliveries::get(&self.store, user, webhook, delivery).await?;
        let (stored, mut attempts) = found.ok_or(Fault::NoSuchWebhook)?;
        let StoredDelivery {
            event,
            sequence,
            next,
            recovered,
        } = stored;

        if attempts.is_empty() && next.is_none() {
            return Err(Fault::NoSuchDelivery);
        }

        for attempt in &mut attempts {
            attempt.entry.about = event.as_ref().map(|event| event.about.clone());
        }

        let last = attempts.first().map(|attempt| &attempt.entry);
        let outcome = last.map(|entry| match (entry.test, &*entry.outcome) {
            // A test is not retried.
            (true, "failed") => DeliveryState::PermanentlyFailed.as_str(),
            (_, outcome) => outcome,
        });

        Ok(DeliveryDetail {
            id: delivery,
            webhook,
            event: delivered_event(delivery, webhook),
            state: DeliveryState::of(next.is_some(), outcome),
            sequence: sequence.or(last.and_then(|entry| entry.sequence)),
            event_detail: event,
            attempts,
            next,
            recovered,
        })
    }
}
