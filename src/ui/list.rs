//! The list of webhooks.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::UiState;
use super::answer::{Count, Frame, Section, page};
use super::charts::{Bars, Svg};
use super::failure::{Failure, sentence};
use super::session::Visitor;
use super::time::Moment;
use crate::store::hours::{self, BriefHour};
use crate::store::webhooks::Webhook;

/// More than a user has, unless an operator allows a great many.
const MOST_SHOWN: usize = 200;
const HOURS: i64 = 24;

#[derive(Template)]
#[template(path = "ui/list.html")]
struct Page {
    frame: Frame,
    rows: Vec<Row>,
    limit: u32,
    limit_reached: bool,
}

struct Row {
    id: Uuid,
    name: String,
    url: String,
    events: Vec<String>,
    status: Status,
    success: Count,
    failure: Count,
    last_triggered: Option<Moment>,
    sparkline: Svg,
}

/// Whether anything is sent, and why not.
pub struct Status {
    pub active: bool,
    /// Since when and why it was disabled by itself.
    pub disabled: Option<(Moment, String)>,
}

impl Status {
    pub fn of(webhook: &Webhook) -> Status {
        let reason = webhook.disabled_reason.as_deref().map_or_else(String::new, sentence);
        let disabled = webhook.disabled_at.map(|at| (Moment::exact(at), reason));
        Status { active: webhook.settings.active, disabled }
    }
}

pub async fn show(State(state): State<UiState>, visitor: Visitor) -> Result<Response, Failure> {
    let now = Timestamp::now();
    let user = &visitor.actor.user;
    let webhooks = state.api.webhooks(user, Uuid::nil(), MOST_SHOWN).await?;
    let since = now - SignedDuration::from_hours(HOURS);
    let hours = hours::of_user(state.api.store(), user, since).await?;
    let limit = state.api.webhook_limit();
    let limit_reached = webhooks.len() >= limit as usize;
    let rows = webhooks.into_iter().map(|webhook| row(webhook, &hours, now)).collect();
    Ok(page(&Page { frame: Frame::of(&state, visitor, Section::Webhooks), rows, limit, limit_reached }))
}

fn row(webhook: Webhook, hours: &[BriefHour], now: Timestamp) -> Row {
    let mut bars = vec![(0, 0); HOURS as usize];
    for hour in hours.iter().filter(|hour| hour.webhook == webhook.id) {
        let age = (now.as_second() - hour.begins_at.as_second()).div_euclid(3_600);
        if let Some(bar) = usize::try_from(HOURS - 1 - age).ok().and_then(|place| bars.get_mut(place)) {
            *bar = (hour.delivered, hour.failed);
        }
    }
    let count = |number: i64| Count(u64::try_from(number).unwrap_or(0));
    Row {
        id: webhook.id,
        status: Status::of(&webhook),
        name: webhook.settings.name,
        url: webhook.settings.url,
        events: webhook.settings.events,
        success: count(webhook.success_count),
        failure: count(webhook.failure_count),
        last_triggered: webhook.last_triggered_at.map(|at| Moment::relative(at, now)),
        sparkline: Bars(bars).sparkline(),
    }
}
