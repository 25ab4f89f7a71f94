//! What a webhook's deliveries came to, hour by hour.

use axum::Json;
use axum::extract::State;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::ApiState;
use super::auth::Caller;
use super::problem::Problem;
use super::query::{WebhookId, no_such_webhook};
use crate::domain::durations::Durations;
use crate::domain::event::UserId;
use crate::domain::time::millis;
use crate::store::hours::{self, Counts, Hour};

const DAY: i64 = 24;
const MONTH: i64 = 30 * DAY;

/// What a webhook's deliveries came to; tests are not counted
#[derive(Serialize, ToSchema)]
pub struct Stats {
    /// The present hour and the 23 before it
    last_24h: Summary,
    /// The present hour and the 719 before it, as far back as the log is kept
    last_30d: Summary,
    /// The hours of the last 30 days in which something happened, the oldest first
    hours: Vec<HourStats>,
}

/// Log entries by their outcome, and how long requests took
#[derive(Serialize, ToSchema)]
pub struct Summary {
    pub delivered: u64,
    /// Attempts that were to be followed by another
    pub failed: u64,
    pub permanently_failed: u64,
    pub cancelled: u64,
    /// The share of attempts that were delivered, from 0 to 1; null where there were none
    #[schema(required = true, minimum = 0, maximum = 1)]
    pub success_rate: Option<f64>,
    pub duration_ms: DurationStats,
}

/// How long requests took, estimated to a fifth; null where there were none
#[derive(Serialize, ToSchema)]
pub struct DurationStats {
    #[schema(required = true)]
    pub p50: Option<u64>,
    #[schema(required = true)]
    pub p95: Option<u64>,
}

/// Log entries of an hour by their outcome
#[derive(Serialize, ToSchema)]
pub struct HourStats {
    /// Its beginning
    #[schema(format = DateTime)]
    hour: String,
    delivered: u64,
    failed: u64,
    permanently_failed: u64,
    cancelled: u64,
}

impl Summary {
    pub fn of<'a>(hours: impl Iterator<Item = &'a Hour>) -> Summary {
        let mut sum = Counts::default();
        for Hour { counts, .. } in hours {
            sum.delivered += counts.delivered;
            sum.failed += counts.failed;
            sum.permanently_failed += counts.permanently_failed;
            sum.cancelled += counts.cancelled;
            sum.durations.merge(&counts.durations);
        }
        let Counts { delivered, failed, permanently_failed, cancelled, durations } = sum;
        let attempts = delivered + failed + permanently_failed;
        let success_rate = (attempts > 0).then(|| delivered as f64 / attempts as f64);
        Summary { delivered, failed, permanently_failed, cancelled, success_rate, duration_ms: durations.into() }
    }
}

impl From<Durations> for DurationStats {
    fn from(durations: Durations) -> Self {
        DurationStats { p50: durations.quantile(0.5), p95: durations.quantile(0.95) }
    }
}

impl From<&Hour> for HourStats {
    fn from(hour: &Hour) -> Self {
        let Counts { delivered, failed, permanently_failed, cancelled, .. } = hour.counts;
        HourStats { hour: millis(hour.begins_at), delivered, failed, permanently_failed, cancelled }
    }
}

impl ApiState {
    /// The hours of the 30 days before `now` in which the webhook did something, the oldest first.
    pub async fn hours(&self, user: &UserId, id: Uuid, now: Timestamp) -> Result<Vec<Hour>, Problem> {
        let since = now - SignedDuration::from_hours(MONTH);
        let mut found = hours::list(&self.store, user, id, since).await?.ok_or_else(no_such_webhook)?;
        // An hour that began exactly so long ago is over for just as long.
        found.retain(|hour| hour.begins_at > since);
        Ok(found)
    }
}

/// Read a webhook's statistics
#[utoipa::path(
    get, path = "/webhooks/{webhook}/stats", tag = "webhooks", operation_id = "readStats",
    params(("webhook" = Uuid, Path, description = "The webhook's id")),
    responses((status = 200, description = "What its deliveries came to", body = Stats))
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    WebhookId(id): WebhookId,
) -> Result<Json<Stats>, Problem> {
    let now = Timestamp::now();
    let found = state.hours(&user, id, now).await?;
    let since = |hours: i64| now - SignedDuration::from_hours(hours);
    let last_day = found.iter().filter(|hour| hour.begins_at > since(DAY));
    let (last_24h, last_30d) = (Summary::of(last_day), Summary::of(found.iter()));
    Ok(Json(Stats { last_24h, last_30d, hours: found.iter().map(HourStats::from).collect() }))
}
