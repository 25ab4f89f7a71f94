//! The page of one delivery: its attempts in all rounds, what comes next, one attempt with its
//! request and response, or two of them compared.

use askama::Template;
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::comparison::{Comparison, Side, compare};
use super::curl;
use super::error::PageError;
use super::excerpt::Excerpt;
use super::fields::Fields;
use super::flash::Flash;
use super::format::{Count, failure_label, outcome_label, pretty, sentence};
use super::log_line::{FAILED, LogLine};
use super::page::{Frame, Section, redirect, validated};
use super::state::webhook_path;
use super::time::{Ago, Exact};
use super::timing::TimingBar;
use super::visit::{Ids, Visit};
use crate::domain::response;
use crate::manage::feed::DeliveryState;
use crate::manage::{
    DeliveryDetail, Fault, LogEntry, RenderedRequest, RoundOrigin, SigningSecret, Webhook,
};

/// The page refreshes itself if the next attempt is due within this time.
const LIVE: SignedDuration = SignedDuration::from_secs(60);
/// The attempts that the timeline lists: two rounds. The delivery log has the others.
const LISTED: usize = 20;
/// A longer body is cut off, because the page would be slow to load. The API returns all of it.
const SHOWN_BYTES: usize = 6 << 10;

#[derive(Template)]
#[template(path = "ui/delivery.html")]
struct DeliveryPage {
    frame: Frame,
    webhook: Webhook,
    attempts: u16,
    delivery: DeliveryDetail,
    rounds: Vec<Round>,
    /// Whether there are older attempts.
    has_older: bool,
    shown: Option<Shown>,
    comparison: Option<Comparison>,
    /// Why the attempts that were selected are not compared.
    error: Option<&'static str>,
    /// The path of the API.
    api: String,
    /// Whether an attempt is in flight or comes next in a moment.
    is_live: bool,
}

/// A round of the timeline.
struct Round {
    number: i16,
    origin: &'static str,
    lines: Vec<LogLine>,
}

/// The attempt whose request and response are shown.
struct Shown {
    line: LogLine,
    timing: TimingBar,
    url: Option<String>,
    request: Option<RenderedRequest>,
    /// Whether the start of the request's body is shown, and not all of it.
    is_cut: bool,
    signature: Option<(&'static str, &'static str)>,
    curl: Option<String>,
    response_headers: Vec<(String, String)>,
    response: Option<Excerpt>,
}

impl Shown {
    fn new(found: LogEntry, attempts: u16) -> Shown {
        let LogEntry {
            detail,
            request,
            signed_with,
        } = found;
        let headers = detail.response_headers.as_deref().map(response::read);
        let body = detail.response_body.as_deref();
        let is_cut = request
            .as_ref()
            .is_some_and(|request| request.body.len() > SHOWN_BYTES);
        let sent = detail.url.as_deref().zip(request.as_ref());
        let sent = sent.filter(|_| !is_cut);

        Shown {
            timing: TimingBar::new(&detail.timing, detail.entry.duration_ms),
            signature: request.as_ref().map(|_| signature_label(signed_with)),
            curl: sent.map(|(url, request)| curl::command(url, request)),
            response_headers: headers.into_iter().flatten().collect(),
            response: body.filter(|body| !body.is_empty()).map(Excerpt::new),
            line: LogLine::new(detail.entry, attempts),
            url: detail.url,
            request,
            is_cut,
        }
    }
}

/// Returns the body as it is shown: formatted, and cut off if it is long.
fn shown_body(body: &str) -> String {
    let mut text = pretty(body);
    text.truncate(text.floor_char_boundary(2 * SHOWN_BYTES));
    text
}

/// What of a delivery its page shows.
#[derive(Default)]
struct Choice {
    /// The newest attempt if there is none.
    attempt: Option<Uuid>,
    /// The attempt to compare it with.
    other: Option<Uuid>,
    error: Option<&'static str>,
}

impl Choice {
    fn parse(fields: &Fields) -> Choice {
        let selected: Vec<Uuid> = fields
            .all("compare")
            .filter_map(|text| text.parse().ok())
            .collect();

        match *selected {
            [] => Choice {
                attempt: fields.one("attempt").parse().ok(),
                ..Choice::default()
            },
            [left, right] if left != right => Choice {
                attempt: Some(left),
                other: Some(right),
                error: None,
            },
            [first, ..] => Choice {
                attempt: Some(first),
                other: None,
                error: Some("Select two different attempts to compare."),
            },
        }
    }
}

/// Returns the class of the badge, and what the check of the signature has found.
fn signature_label(signed_with: Option<SigningSecret>) -> (&'static str, &'static str) {
    match signed_with {
        Some(SigningSecret::Current) => ("good", "Signature verifies with the current secret"),
        Some(SigningSecret::Previous) => ("warn", "Signature verifies with the previous secret"),
        None => ("muted", "Signed with a secret that has been replaced since"),
    }
}

fn origin_label(origin: RoundOrigin) -> &'static str {
    match origin {
        RoundOrigin::Event => "Automatic",
        RoundOrigin::Test => "Test",
        RoundOrigin::Redelivery => "Redelivered",
        RoundOrigin::Recovery => "Recovered",
    }
}

impl From<&Shown> for Side {
    fn from(shown: &Shown) -> Side {
        let line = &shown.line;
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let mut facts = vec![
            fact("Outcome", line.outcome().0.to_owned()),
            fact("Response status", line.status()),
            fact("Duration", line.duration().to_string()),
        ];

        facts.extend(
            line.entry.error.iter().map(|(kind, message)| {
                fact("Failure", format!("{}: {message}", failure_label(kind)))
            }),
        );
        facts.extend(
            shown
                .timing
                .parts
                .iter()
                .map(|part| fact(part.name, part.shown().to_string())),
        );
        facts.extend(shown.url.iter().map(|url| fact("URL", url.clone())));

        if let Some(request) = &shown.request {
            let headers = request.headers.iter();
            facts.extend(headers.map(|(name, value)| (format!("Request {name}"), value.clone())));
        }

        let headers = shown.response_headers.iter();
        facts.extend(headers.map(|(name, value)| (format!("Response {name}"), value.clone())));
        facts.extend(
            shown
                .response
                .iter()
                .map(|body| fact("Response body", body.text.clone())),
        );

        Side {
            title: format!("Attempt {}", line.attempt),
            facts,
        }
    }
}

impl DeliveryPage {
    /// Whether two attempts can be compared.
    fn is_comparable(&self) -> bool {
        self.delivery.attempts.len() > 1
    }

    /// Returns the label of the state and the class of its badge.
    fn state(&self) -> (&'static str, &'static str) {
        match self.delivery.state {
            DeliveryState::PermanentlyFailed if self.delivery.is_test() => FAILED,
            state => state_label(state),
        }
    }

    /// What the delivery is about, or its event type.
    fn title(&self) -> String {
        let event = self.delivery.event_detail.as_ref();
        event
            .and_then(|event| event.about.text())
            .unwrap_or_else(|| self.delivery.kind().to_owned())
    }

    fn newest(&self) -> Option<Uuid> {
        self.delivery
            .attempts
            .first()
            .map(|attempt| attempt.entry.id)
    }

    fn is_shown(&self, line: &LogLine) -> bool {
        self.shown
            .as_ref()
            .is_some_and(|shown| shown.line.entry.id == line.entry.id)
    }
}

/// Returns the label of a delivery's state and the class of its badge.
pub fn state_label(state: DeliveryState) -> (&'static str, &'static str) {
    match state {
        DeliveryState::Pending => ("Pending", "warn"),
        DeliveryState::Ended => ("Ended", "muted"),
        state => outcome_label(state.as_str()),
    }
}

/// Returns the path of a delivery's page.
pub fn path(webhook: Uuid, delivery: Uuid) -> String {
    webhook_path(webhook, &format!("/deliveries/{delivery}"))
}

/// Shows a delivery with its newest attempt, the one of the field `attempt`, or the two of the field
/// `compare`.
pub async fn show(
    visit: Visit,
    Ids((id, delivery)): Ids<(Uuid, Uuid)>,
    fields: Fields,
) -> Result<Response, PageError> {
    render(visit, id, delivery, Choice::parse(&fields)).await
}

/// Shows the delivery of a log entry.
pub async fn show_entry(
    visit: Visit,
    Ids((id, log)): Ids<(Uuid, Uuid)>,
) -> Result<Response, PageError> {
    let found = visit.manage().log_entry(visit.user(), id, log).await?;
    let delivery = found.detail.entry.delivery;
    let choice = Choice {
        attempt: Some(log),
        ..Choice::default()
    };
    render(visit, id, delivery, choice).await
}

async fn render(
    visit: Visit,
    id: Uuid,
    delivery: Uuid,
    choice: Choice,
) -> Result<Response, PageError> {
    let manage = visit.manage();
    let user = visit.user();
    let attempts = visit.state.attempts;
    let webhook = manage.webhook(user, id).await?;
    let mut delivery = manage.delivery(user, id, delivery).await?;
    let has_older = delivery.attempts.len() > LISTED;
    delivery.attempts.truncate(LISTED);
    let newest = delivery.attempts.first().map(|attempt| attempt.entry.id);

    let read = async |log: Uuid| {
        let found = manage.log_entry(user, id, log).await?;
        if found.detail.entry.delivery == delivery.id {
            Ok(found)
        } else {
            Err(PageError::from(Fault::NoSuchLogEntry))
        }
    };

    let shown = match choice.attempt.or(newest) {
        Some(log) => Some(Shown::new(read(log).await?, attempts)),
        None => None,
    };
    let comparison = match (shown.as_ref(), choice.other) {
        (Some(left), Some(log)) => Some(compare(
            left.into(),
            (&Shown::new(read(log).await?, attempts)).into(),
        )),
        _ => None,
    };

    let soon = Timestamp::now() + LIVE;
    let is_due = delivery
        .next
        .is_some_and(|next| next.leased || next.due_at.is_some_and(|due| due <= soon));

    let rounds = delivery.rounds().into_iter().map(|(number, origin)| Round {
        number,
        origin: origin_label(origin),
        lines: delivery
            .attempts
            .iter()
            .filter(|attempt| attempt.entry.round == number)
            .map(|attempt| LogLine::new(attempt.entry.clone(), attempts))
            .collect(),
    });

    let template = DeliveryPage {
        frame: visit.frame(Section::Webhooks),
        webhook,
        attempts,
        rounds: rounds.collect(),
        has_older,
        shown,
        comparison,
        error: choice.error,
        // A page with an error would be refreshed to the same error.
        is_live: is_due && choice.error.is_none(),
        api: visit.state.api.base_path().to_owned(),
        delivery,
    };

    Ok(validated(choice.error.is_none(), &template))
}

/// Starts the next round of the entry's delivery, and leads to the page of the delivery.
pub async fn redeliver(
    visit: Visit,
    Ids((id, log)): Ids<(Uuid, Uuid)>,
) -> Result<Response, PageError> {
    let (to, flash) = match visit.manage().redeliver(&visit.actor, id, log).await {
        Ok(started) => {
            let round = started.round;
            let text = format!("Redelivery started (round {round}). Its attempts appear below.");
            (path(id, started.delivery), Flash::good(text))
        }
        // The entry can still be viewed.
        Err(
            fault @ (Fault::WebhookInactive | Fault::NotRedeliverable(_) | Fault::EventExpired),
        ) => {
            let entry = webhook_path(id, &format!("/logs/{log}"));
            (entry, Flash::bad(sentence(&fault.to_string())))
        }
        Err(fault) => return Err(fault.into()),
    };
    Ok(redirect(&to, flash))
}
