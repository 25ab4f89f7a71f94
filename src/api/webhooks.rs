//! The operations on webhooks.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::ApiState;
use super::auth::{Caller, Changer};
use super::body::Object;
use super::manage::{NewWebhook, UpdatedWebhook, etag};
use super::openapi::EventName;
use super::problem::{Problem, ProblemBody};
use super::query::{Page, Parameters, WebhookId};
use super::url_check::Warning;
use crate::domain::time::millis;
use crate::store::webhooks::{self, Settings};

/// A webhook, without its secret
#[derive(Serialize, ToSchema)]
#[schema(as = Webhook)]
pub struct WebhookBody {
    id: Uuid,
    name: String,
    #[schema(format = "uri")]
    url: String,
    /// Each once, in the catalogue's order
    #[schema(value_type = Vec<EventName>)]
    events: Vec<String>,
    /// Whether anything is sent
    active: bool,
    /// Deliveries that succeeded
    success_count: i64,
    /// Attempts that failed, since the webhook was created or reactivated after an automatic disablement
    failure_count: i64,
    /// Attempts that failed since one last succeeded
    consecutive_failures: i64,
    #[schema(required = true, format = DateTime)]
    last_triggered_at: Option<String>,
    /// When it was disabled automatically; null where it was not, or was reactivated
    #[schema(required = true, format = DateTime)]
    disabled_at: Option<String>,
    /// How its attempts failed, in words; in parentheses, in the log's: `HTTP 500 answers (http_status)`
    #[schema(required = true)]
    disabled_reason: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    updated_at: String,
}

impl From<webhooks::Webhook> for WebhookBody {
    fn from(webhook: webhooks::Webhook) -> Self {
        let Settings { name, url, events, active } = webhook.settings;
        let time = |at: Option<Timestamp>| at.map(millis);
        WebhookBody {
            id: webhook.id,
            name,
            url,
            events,
            active,
            success_count: webhook.success_count,
            failure_count: webhook.failure_count,
            consecutive_failures: webhook.consecutive_failures,
            last_triggered_at: time(webhook.last_triggered_at),
            disabled_at: time(webhook.disabled_at),
            disabled_reason: webhook.disabled_reason,
            created_at: millis(webhook.created_at),
            updated_at: millis(webhook.updated_at),
        }
    }
}

/// A webhook with its secret: shown now and never again
#[derive(Serialize, ToSchema)]
pub struct CreatedWebhook {
    #[serde(flatten)]
    webhook: WebhookBody,
    /// The key of the signatures: the whole string's bytes
    #[schema(example = "whsec_…")]
    secret: String,
    /// Absent where there are none
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<Warning>,
}

/// A webhook as it is after an edit
#[derive(Serialize, ToSchema)]
#[schema(as = UpdatedWebhook)]
pub struct UpdatedBody {
    #[serde(flatten)]
    webhook: WebhookBody,
    /// Absent where there are none
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<Warning>,
}

/// A webhook's new secret: shown now and never again
#[derive(Serialize, ToSchema)]
pub struct NewSecret {
    id: Uuid,
    /// The key of the signatures: the whole string's bytes
    #[schema(example = "whsec_…")]
    secret: String,
}

/// A webhook to create
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "documents a body that is read member by member, to tell all its faults")]
pub struct CreateWebhook {
    /// Without control characters
    #[schema(min_length = 1, max_length = 200, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$")]
    name: String,
    /// The receiver's address. A host whose name does not resolve yet is taken, with an entry in the answer's `warnings`
    #[schema(format = "uri", max_length = 2048, example = "https://receiver.example/hooks")]
    url: String,
    #[schema(value_type = Vec<EventName>, min_items = 1)]
    events: Vec<String>,
    #[schema(default = true, required = false)]
    active: bool,
}

/// What to change; the rest stays
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "documents a body that is read member by member, to tell all its faults")]
pub struct UpdateWebhook {
    #[schema(min_length = 1, max_length = 200, nullable = false, pattern = "^[^\\u0000-\\u001f\\u007f-\\u009f]*$")]
    name: Option<String>,
    #[schema(format = "uri", max_length = 2048, nullable = false)]
    url: Option<String>,
    #[schema(value_type = Option<Vec<EventName>>, min_items = 1, nullable = false)]
    events: Option<Vec<String>>,
    /// False cancels what is pending; true after an automatic disablement forgets the failures counted
    #[schema(nullable = false)]
    active: Option<bool>,
}

/// Whether the request may change a webhook with these settings. Weak tags never match, `*` matches all there is.
fn if_match(headers: &HeaderMap, settings: &Settings) -> bool {
    let mut conditions = headers.get_all(header::IF_MATCH).iter().peekable();
    let wanted = etag(settings);
    conditions.peek().is_none()
        || conditions.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).any(|tag| {
            let tag = tag.trim_ascii();
            tag == b"*" || tag == wanted.as_bytes()
        })
}

fn with_etag(webhook: webhooks::Webhook) -> Response {
    let etag = etag(&webhook.settings);
    ([(header::ETAG, etag)], Json(WebhookBody::from(webhook))).into_response()
}

/// List webhooks
///
/// In the order of their creation.
#[utoipa::path(
    get, path = "/webhooks", tag = "webhooks", operation_id = "listWebhooks",
    params(
        ("limit" = Option<u8>, Query, description = "How many; 50 unless told", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before",
         pattern = "^[A-Za-z0-9_-]{21}[AQgw]$"),
    ),
    responses((status = 200, description = "A page of webhooks", body = Page<WebhookBody>,
               headers(("Link" = String, description = "The next page, with rel=\"next\"; not on the last one"))))
)]
pub async fn list(
    State(state): State<ApiState>,
    Caller(user): Caller,
    mut parameters: Parameters,
) -> Result<Response, Problem> {
    let (limit, cursor) = (parameters.limit(), parameters.cursor());
    let target = parameters.finish()?;
    let rows = state.webhooks(&user, cursor.unwrap_or(Uuid::nil()), limit + 1).await?;
    Ok(Page::new(rows, limit, |webhook| webhook.id, WebhookBody::from).answer(&target))
}

/// Create a webhook
///
/// The answer holds the secret, which is shown this once.
#[utoipa::path(
    post, path = "/webhooks", tag = "webhooks", operation_id = "createWebhook",
    request_body = CreateWebhook,
    responses(
        (status = 201, description = "Created", body = CreatedWebhook,
         headers(("Location" = String, description = "Where the webhook is"), ("ETag" = String, description = "Its version"))),
        (status = 409, description = "The user has as many webhooks as allowed, or a request with this Idempotency-Key is being served", body = ProblemBody,
         content_type = "application/problem+json"),
    )
)]
pub async fn create(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    Object(members): Object,
) -> Result<Response, Problem> {
    let NewWebhook { webhook, secret, warnings } = state.create_webhook(&actor, members).await?;
    let etag = etag(&webhook.settings);
    let location = format!("{}/webhooks/{}", state.base_path, webhook.id);
    let location = HeaderValue::try_from(location).map_err(|_| Problem::internal())?;
    let body = CreatedWebhook { webhook: webhook.into(), secret: secret.expose_secret().to_owned(), warnings };
    let mut response = (StatusCode::CREATED, [(header::ETAG, etag)], Json(body)).into_response();
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

/// Read a webhook
#[utoipa::path(
    get, path = "/webhooks/{webhook}", tag = "webhooks", operation_id = "readWebhook",
    params(("webhook" = Uuid, Path, description = "The webhook's id")),
    responses((status = 200, description = "The webhook", body = WebhookBody,
               headers(("ETag" = String, description = "Its version: of name, url, events and active"))))
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    WebhookId(id): WebhookId,
) -> Result<Response, Problem> {
    state.webhook(&user, id).await.map(with_etag)
}

/// Edit a webhook
///
/// Switching it off cancels what is pending. Switching it on after an automatic disablement forgets the failures counted.
#[utoipa::path(
    patch, path = "/webhooks/{webhook}", tag = "webhooks", operation_id = "updateWebhook",
    params(
        ("webhook" = Uuid, Path, description = "The webhook's id"),
        ("If-Match" = Option<String>, Header, description = "Edit only this version"),
    ),
    request_body = UpdateWebhook,
    responses((status = 200, description = "The webhook as it is now", body = UpdatedBody,
               headers(("ETag" = String, description = "Its version"))))
)]
pub async fn update(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    headers: HeaderMap,
    Object(members): Object,
) -> Result<Response, Problem> {
    let condition = |settings: &Settings| if_match(&headers, settings);
    let UpdatedWebhook { webhook, warnings } = state.update_webhook(&actor, id, members, &condition).await?;
    let etag = etag(&webhook.settings);
    Ok(([(header::ETAG, etag)], Json(UpdatedBody { webhook: webhook.into(), warnings })).into_response())
}

/// Delete a webhook
///
/// What is pending is cancelled. The log can be read no more.
#[utoipa::path(
    delete, path = "/webhooks/{webhook}", tag = "webhooks", operation_id = "deleteWebhook",
    params(
        ("webhook" = Uuid, Path, description = "The webhook's id"),
        ("If-Match" = Option<String>, Header, description = "Delete only this version"),
    ),
    responses((status = 204, description = "Deleted"))
)]
pub async fn delete(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let condition = |settings: &Settings| if_match(&headers, settings);
    state.delete_webhook(&actor, id, &condition).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replace the secret
///
/// The old one stops working at once. The new one is shown this once.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/regenerate-secret", tag = "webhooks", operation_id = "regenerateSecret",
    params(("webhook" = Uuid, Path, description = "The webhook's id")),
    responses((status = 200, description = "The new secret", body = NewSecret))
)]
pub async fn regenerate_secret(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
) -> Result<Json<NewSecret>, Problem> {
    let secret = state.regenerate_secret(&actor, id).await?;
    Ok(Json(NewSecret { id, secret: secret.expose_secret().to_owned() }))
}
