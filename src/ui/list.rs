//! The list of webhooks.

use askama::Template;
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};

use super::charts::Sparkline;
use super::error::PageError;
use super::format::{Count, disabled_by, disabled_reason, failures};
use super::page::{Frame, Section, page};
use super::time::Ago;
use super::visit::Visit;
use crate::manage::{BriefHour, Countdown, Webhook};

const HOURS: i64 = 24;

#[derive(Template)]
#[template(path = "ui/list.html")]
struct WebhooksPage {
    frame: Frame,
    rows: Vec<(Webhook, Sparkline, Option<Countdown>)>,
    limit: u32,
}

pub async fn show(visit: Visit) -> Result<Response, PageError> {
    let now = Timestamp::now();
    let manage = visit.manage();
    let webhooks = visit.webhooks().await?;
    let hours = manage
        .hours_of_all(visit.user(), now - SignedDuration::from_hours(HOURS))
        .await?;
    let row = |webhook: Webhook| {
        let sparkline = sparkline(&webhook, &hours, now);
        let countdown = manage.disablement().countdown(&webhook.standing(now));
        (webhook, sparkline, countdown)
    };

    let rows = webhooks.into_iter().map(row).collect();
    Ok(page(&WebhooksPage {
        frame: visit.frame(Section::Webhooks),
        rows,
        limit: manage.webhook_limit(),
    }))
}

fn sparkline(webhook: &Webhook, hours: &[BriefHour], now: Timestamp) -> Sparkline {
    let mut bars = vec![(0, 0); HOURS as usize];

    for hour in hours.iter().filter(|hour| hour.webhook == webhook.id) {
        let age = (now.as_second() - hour.begins_at.as_second()).div_euclid(3_600);
        if let Some(bar) = usize::try_from(HOURS - 1 - age)
            .ok()
            .and_then(|index| bars.get_mut(index))
        {
            *bar = (hour.delivered, hour.failed);
        }
    }

    Sparkline(bars)
}
