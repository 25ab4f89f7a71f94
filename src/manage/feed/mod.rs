//! The feed: a user's events in the order of their commits, read page by page or followed as they
//! occur.

mod cursor;
mod follow;
pub(super) mod state;

use metrics::counter;
use uuid::Uuid;

pub use self::cursor::FeedPosition;
pub use self::follow::{Access, Follower};

use super::fault::{Fault, Result};
use super::service::Manage;
use super::tokens::hash;
use crate::domain::delivery::Outcome;
use crate::domain::event::{EventKind, UserId, delivery_id};
use crate::store::feed::{self, Event, EventDelivery, EventHeadline, FeedFilter, PageSize};
use crate::telemetry;

/// Webhooks whose deliveries of an event are listed. More than a user has, unless an operator sets
/// a very high limit.
const MOST_WEBHOOKS: usize = 200;

/// A page of the feed.
#[derive(Debug)]
pub struct FeedPage {
    pub events: Vec<Event>,
    /// No event that may still appear is before this place.
    pub next: FeedPosition,
    /// Whether there may be more events now.
    pub more: bool,
}

/// The state of an event's delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryState {
    /// Waits for an attempt, or an attempt is in flight.
    Pending,
    Delivered,
    PermanentlyFailed,
    Cancelled,
    /// It has ended, but the delivery log does not say how: an entry is missing, or of a newer
    /// version.
    Ended,
}

impl DeliveryState {
    pub const ALL: [DeliveryState; 5] = [
        DeliveryState::Pending,
        DeliveryState::Delivered,
        DeliveryState::PermanentlyFailed,
        DeliveryState::Cancelled,
        DeliveryState::Ended,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            DeliveryState::Pending => "pending",
            DeliveryState::Delivered => Outcome::Delivered.as_str(),
            DeliveryState::PermanentlyFailed => Outcome::PermanentlyFailed.as_str(),
            DeliveryState::Cancelled => Outcome::Cancelled.as_str(),
            DeliveryState::Ended => "ended",
        }
    }

    /// Returns the state of a delivery, by whether there is a next attempt and by the outcome of the
    /// last log entry.
    pub fn of(is_pending: bool, outcome: Option<&str>) -> DeliveryState {
        let by_name = |outcome: &str| {
            DeliveryState::ALL
                .into_iter()
                .find(|state| state.as_str() == outcome)
        };

        match is_pending {
            true => DeliveryState::Pending,
            false => outcome.and_then(by_name).unwrap_or(DeliveryState::Ended),
        }
    }
}

impl Manage {
    /// Returns the place after the last event.
    pub async fn feed_latest(&self) -> Result<FeedPosition> {
        Ok(FeedPosition(feed::last_sequence(&self.store).await?))
    }

    /// Reads the user's events after a place, in the order of their commits. A filtered search
    /// examines a bounded number of events: its page may be empty and still have more.
    pub async fn feed_page(
        &self,
        user: &UserId,
        filter: &FeedFilter,
        FeedPosition(after): FeedPosition,
        size: PageSize,
    ) -> Result<FeedPage> {
        if !filter.is_empty() {
            self.searches.count(user)?;
        }

        let _permit = self.feed.reads.acquire().await.expect("it is never closed");
        counter!(telemetry::FEED_READS).increment(1);

        let feed::FeedRead { events, next, more } =
            feed::page(&self.store, user, filter, after, size).await?;
        Ok(FeedPage {
            events,
            next: FeedPosition(next),
            more,
        })
    }

    /// Registers a client that waits for the user's events. The caller reads the feed after this
    /// call, and whenever the client is woken.
    pub fn follow_feed(&self, user: &UserId, access: Access) -> Result<Follower> {
        self.feed
            .followers
            .follow(user, access)
            .ok_or(Fault::TooManyStreams)
    }

    /// Lists the user's events before a place, or the newest ones, without their data. The newest
    /// is first.
    pub async fn newest_events(
        &self,
        user: &UserId,
        kind: Option<EventKind>,
        before: Option<FeedPosition>,
        limit: usize,
    ) -> Result<(Vec<EventHeadline>, Option<FeedPosition>)> {
        if kind.is_some() {
            self.searches.count(user)?;
        }

        let before = before.map_or(i64::MAX, |before| before.0);
        let (mut found, horizon) = feed::newest(&self.store, user, kind, before, limit + 1).await?;
        let more = found.len() > limit;

        found.truncate(limit);
        let next = found
            .last()
            .filter(|_| more)
            .map(|event| event.sequence)
            .or(horizon);
        Ok((found, next.map(FeedPosition)))
    }

    /// Returns an event of the user with its deliveries to the user's webhooks.
    pub async fn event(&self, user: &UserId, id: Uuid) -> Result<(Event, Vec<EventDelivery>)> {
        self.searches.count(user)?;

        let event = feed::get(&self.store, user, id)
            .await?
            .ok_or(Fault::NoSuchEvent)?;
        let webhooks = self.webhooks(user, None, MOST_WEBHOOKS).await?.items;
        let webhooks: Vec<Uuid> = webhooks.iter().map(|webhook| webhook.id).collect();
        let ids: Vec<Uuid> = webhooks
            .iter()
            .map(|webhook| delivery_id(id, *webhook))
            .collect();
        let deliveries = feed::deliveries(&self.store, &webhooks, &ids, &event).await?;

        Ok((event, deliveries))
    }
}

impl Access {
    /// The access of a session, by the session's id.
    pub fn of_session(session: &str) -> Access {
        Access::Session(hash(session))
    }
}

impl FeedPosition {
    /// The place after an event.
    pub fn after(event: &Event) -> FeedPosition {
        FeedPosition(event.sequence)
    }

    /// The place before the event with this number.
    pub fn before(sequence: i64) -> FeedPosition {
        FeedPosition(sequence - 1)
    }
}
