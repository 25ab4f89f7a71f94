//! Reads the statistics of a webhook.

use axum::Json;
use axum::extract::State;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use utoipa::ToSchema;

use super::query::WebhookId;
use super::state::ApiState;
use crate::auth::Caller;
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::manage::{Counts, Hour};

const DAY: SignedDuration = SignedDuration::from_hours(24);

/// Statistics of a webhook's deliveries, without tests
#[derive(Serialize, ToSchema)]
pub struct Stats {
    /// The current hour and the 23 before it
    last_24h: Summary,
    /// The current hour and the 719 before it, as far back as the delivery log is stored
    last_30d: Summary,
    /// The hours of the last 30 days with entries of the delivery log, oldest first
    hours: Vec<HourStats>,
}

/// Entries of the delivery log by outcome, and the duration of requests
#[derive(Serialize, ToSchema)]
pub struct Summary {
    delivered: u64,
    /// Failed attempts after which a retry was scheduled
    failed: u64,
    permanently_failed: u64,
    cancelled: u64,
    /// The share of attempts that were delivered, from 0 to 1; null if there were none
    #[schema(required = true, minimum = 0, maximum = 1)]
    success_rate: Option<f64>,
    duration_ms: DurationStats,
}

/// The duration of requests, estimated with an error of at most a fifth; null if there were none
#[derive(Serialize, ToSchema)]
pub struct DurationStats {
    #[schema(required = true)]
    p50: Option<u64>,
    #[schema(required = true)]
    p95: Option<u64>,
}

/// Entries of the delivery log in one hour by outcome
#[derive(Serialize, ToSchema)]
pub struct HourStats {
    /// Its start
    #[schema(format = DateTime)]
    hour: String,
    delivered: u64,
    failed: u64,
    permanently_failed: u64,
    cancelled: u64,
}

impl From<Counts> for Summary {
    fn from(counts: Counts) -> Self {
        let success_rate = counts.success_rate();
        let Counts {
            delivered,
            failed,
            permanently_failed,
            cancelled,
            durations,
        } = counts;

        let duration_ms = DurationStats {
            p50: durations.quantile(0.5),
            p95: durations.quantile(0.95),
        };

        Summary {
            delivered,
            failed,
            permanently_failed,
            cancelled,
            success_rate,
            duration_ms,
        }
    }
}

impl From<&Hour> for HourStats {
    fn from(hour: &Hour) -> Self {
        let Counts {
            delivered,
            failed,
            permanently_failed,
            cancelled,
            ..
        } = hour.counts;
        HourStats {
            hour: millis(hour.begins_at),
            delivered,
            failed,
            permanently_failed,
            cancelled,
        }
    }
}

/// Read a webhook's statistics
#[utoipa::path(
    get, path = "/webhooks/{webhook}/stats", tag = "webhooks", operation_id = "readStats",
    responses((status = 200, description = "The webhook's statistics", body = Stats))
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    WebhookId(id): WebhookId,
) -> Result<Json<Stats>, Problem> {
    let now = Timestamp::now();
    let hours = state.manage().hours(&user, id, now).await?;
    let last_day = hours.iter().filter(|hour| hour.begins_at > now - DAY);

    Ok(Json(Stats {
        last_24h: Counts::sum(last_day).into(),
        last_30d: Counts::sum(&hours).into(),
        hours: hours.iter().map(HourStats::from).collect(),
    }))
}
