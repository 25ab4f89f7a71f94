//! The account's events: the list, the newest first, and the page of one event.

use askama::Template;
use axum::response::Response;
use uuid::Uuid;

use super::delivery::{path, state_label};
use super::error::PageError;
use super::fields::Fields;
use super::format::pretty;
use super::page::{Frame, Pages, Section, page, validated};
use super::state::link;
use super::time::Ago;
use super::visit::{Ids, Visit};
use crate::domain::about::About;
use crate::domain::event::EventKind;
use crate::manage::feed::{DeliveryState, FeedPosition};
use crate::manage::{Event, EventDelivery, EventHeadline, Webhook};

const PAGE: usize = 50;
const PATH: &str = "/ui/events";

#[derive(Template)]
#[template(path = "ui/events.html")]
struct EventsPage {
    frame: Frame,
    fields: Fields,
    errors: Vec<String>,
    events: Vec<EventHeadline>,
    is_filtered: bool,
    pages: Pages,
}

pub async fn list(visit: Visit, fields: Fields) -> Result<Response, PageError> {
    let manage = visit.manage();
    let user = visit.user();
    let mut errors = Vec::new();
    let kind: Option<EventKind> = fields.optional(
        "event",
        |text| text.parse().ok(),
        "Select an event type from the list.",
        &mut errors,
    );

    let before = fields.optional(
        "before",
        |text| text.parse::<FeedPosition>().ok(),
        "This page does not exist. Start from the newest events.",
        &mut errors,
    );

    let is_valid = errors.is_empty();
    let (events, next) = if is_valid {
        manage.newest_events(user, kind, before, PAGE).await?
    } else {
        (Vec::new(), None)
    };

    let path = |before: &str| link(PATH, [("event", fields.one("event")), ("before", before)]);

    let template = EventsPage {
        frame: visit.frame(Section::Events),
        errors,
        events,
        is_filtered: kind.is_some(),
        pages: Pages::new(fields.one("before"), next, path),
        fields,
    };

    Ok(validated(is_valid, &template))
}

#[derive(Template)]
#[template(path = "ui/event.html")]
struct EventPage {
    frame: Frame,
    event: Event,
    data: String,
    deliveries: Vec<DeliveryLine>,
}

impl EventPage {
    /// What the event is about, or its type.
    fn title(&self) -> String {
        let about = About::of(&self.event.data).text();
        about.unwrap_or_else(|| self.event.kind.clone())
    }
}

/// A delivery with the name of its webhook.
struct DeliveryLine {
    webhook: String,
    path: String,
    delivery: EventDelivery,
}

impl DeliveryLine {
    /// Returns the label of the state and the class of its badge.
    fn state(&self) -> (&'static str, &'static str) {
        state_label(DeliveryState::of(
            self.delivery.is_pending,
            self.delivery.outcome.as_deref(),
        ))
    }
}

pub async fn show(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let manage = visit.manage();
    let user = visit.user();
    let (event, deliveries) = manage.event(user, id).await?;
    let webhooks = visit.webhooks().await?;

    let line = |delivery: EventDelivery| {
        let of = |webhook: &&Webhook| webhook.id == delivery.webhook;
        DeliveryLine {
            webhook: webhooks
                .iter()
                .find(of)
                .map(|webhook| webhook.settings.name.clone())
                .unwrap_or_default(),
            path: path(delivery.webhook, delivery.id),
            delivery,
        }
    };

    let data = pretty(&event.data);
    let deliveries = deliveries.into_iter().map(line).collect();

    Ok(page(&EventPage {
        frame: visit.frame(Section::Events),
        event,
        data,
        deliveries,
    }))
}
