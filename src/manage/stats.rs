//! Statistics of webhooks, by the hour.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::fault::{Fault, Result};
use super::service::Manage;
use crate::domain::event::UserId;
use crate::store::hours;
pub use crate::store::hours::{BriefHour, Counts, Hour};

const MONTH: SignedDuration = SignedDuration::from_hours(30 * 24);

impl Manage {
    /// Returns the hours of the 30 days before `now` in which the webhook had attempts or
    /// cancellations, oldest first.
    pub async fn hours(&self, user: &UserId, webhook: Uuid, now: Timestamp) -> Result<Vec<Hour>> {
        let since = now - MONTH;
        let mut found = hours::list(&self.store, user, webhook, since)
            .await?
            .ok_or(Fault::NoSuchWebhook)?;

        // The store includes an hour that started exactly 30 days ago.
        found.retain(|hour| hour.begins_at > since);
        Ok(found)
    }

    /// Returns the hours since a time of all the user's webhooks, unordered.
    pub async fn hours_of_all(&self, user: &UserId, since: Timestamp) -> Result<Vec<BriefHour>> {
        Ok(hours::of_user(&self.store, user, since).await?)
    }
}
