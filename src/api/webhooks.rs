//! Operations that list, create, read, edit and delete webhooks.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use secrecy::ExposeSecret;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::Object;
use super::query::{Page, QueryParameters, WebhookId, WebhookName};
use super::state::ApiState;
use crate::auth::{Caller, Changer};
use crate::domain::members::FieldError;
use crate::domain::settings::Settings;
use crate::domain::text;
use crate::domain::time::millis;
use crate::http::conditional::{may_change, may_create};
use crate::http::problem::Problem;
use crate::manage::{
    Fault, List, Manage, Policy, PutWebhook, UpdatedWebhook, Warning, Webhook, WebhookWithSecret,
    public_key_text, version,
};

/// A webhook, without its secret
#[derive(Serialize, ToSchema)]
#[schema(as = Webhook)]
pub struct WebhookBody {
    id: Uuid,
    /// Described by `Settings`.
    #[serde(flatten)]
    #[schema(ignore)]
    settings: Settings,
    /// Successful deliveries
    success_count: i64,
    /// Failed attempts since the webhook was created or reactivated after an automatic disablement
    failure_count: i64,
    /// Failed attempts since the last success
    consecutive_failures: i64,
    /// When the first failed attempt since the last success ended; null if the last attempt succeeded
    #[schema(required = true, format = DateTime)]
    failing_since: Option<String>,
    /// The failed attempts after which the webhook is disabled, if none succeeds in between, or in
    /// total if the platform counts all failures; null if it is inactive
    #[schema(required = true)]
    failures_until_disabled: Option<u64>,
    /// Before this time it is not disabled, however many attempts fail; null if it does not fail, or
    /// has failed long enough
    #[schema(required = true, format = DateTime)]
    not_disabled_before: Option<String>,
    #[schema(required = true, format = DateTime)]
    last_triggered_at: Option<String>,
    /// When it was disabled automatically or by the operator; null if it was not, or was reactivated
    #[schema(required = true, format = DateTime)]
    disabled_at: Option<String>,
    /// Why it was disabled: how its attempts failed, with the kind of error as in the delivery log:
    /// `HTTP 500 answers (http_status)`. `gone` if the receiver answered 410 Gone. After `operator: `,
    /// the reason that the operator has given
    #[schema(required = true)]
    disabled_reason: Option<String>,
    #[schema(format = DateTime)]
    created_at: String,
    #[schema(format = DateTime)]
    updated_at: String,
    /// The webhook's own ed25519 key, as `/.well-known/walhook-keys.json` lists it; null unless
    /// `signing` names ed25519
    #[schema(required = true, example = "whpk_…")]
    public_key: Option<String>,
    /// When the previous secret stops signing; null if it does not sign any more
    #[schema(required = true, format = DateTime)]
    previous_secret_expires_at: Option<String>,
}

impl WebhookBody {
    /// `disablement` is when the webhook is disabled.
    pub fn new(webhook: Webhook, disablement: &Policy) -> WebhookBody {
        let countdown = disablement.countdown(&webhook.standing(Timestamp::now()));
        let time = |at: Option<Timestamp>| at.map(millis);
        WebhookBody {
            id: webhook.id,
            settings: webhook.settings,
            success_count: webhook.success_count,
            failure_count: webhook.failure_count,
            consecutive_failures: webhook.consecutive_failures,
            failing_since: time(webhook.failing_since),
            failures_until_disabled: countdown.map(|countdown| countdown.failures),
            not_disabled_before: time(countdown.and_then(|countdown| countdown.not_before)),
            last_triggered_at: time(webhook.last_triggered_at),
            disabled_at: time(webhook.disabled_at),
            disabled_reason: webhook.disabled_reason,
            created_at: millis(webhook.created_at),
            updated_at: millis(webhook.updated_at),
            public_key: webhook.public_key.as_deref().map(public_key_text),
            previous_secret_expires_at: time(webhook.previous_secret_expires_at),
        }
    }
}

/// A setting that is saved although it may not work
#[derive(Serialize, ToSchema)]
#[schema(as = Warning)]
pub struct WarningBody {
    /// A JSON pointer (RFC 6901) into the request's body
    #[schema(example = "/url")]
    pointer: &'static str,
    #[schema(example = "the host's name does not resolve")]
    detail: String,
}

impl From<Warning> for WarningBody {
    fn from(Warning { pointer, detail }: Warning) -> Self {
        WarningBody { pointer, detail }
    }
}

fn warnings(warnings: Vec<Warning>) -> Vec<WarningBody> {
    warnings.into_iter().map(WarningBody::from).collect()
}

/// A webhook with its secret, which is shown only this once
#[derive(Serialize, ToSchema)]
pub struct CreatedWebhook {
    #[serde(flatten)]
    webhook: WebhookBody,
    /// The key of the signatures: the whole string's bytes
    #[schema(example = "whsec_…")]
    secret: String,
    /// Absent if there are none
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<WarningBody>,
}

/// A webhook after an edit
#[derive(Serialize, ToSchema)]
#[schema(as = UpdatedWebhook)]
pub struct UpdatedBody {
    #[serde(flatten)]
    webhook: WebhookBody,
    /// Absent if there are none
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    warnings: Vec<WarningBody>,
}

/// A webhook to create
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWebhook {}

/// All settings of a webhook
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplaceWebhook {}

/// The settings to change; the others stay as they are
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateWebhook {}

fn etag(webhook: &Webhook) -> String {
    format!("\"{}\"", version(webhook))
}

fn webhook_response(manage: &Manage, webhook: Webhook) -> Response {
    let etag = etag(&webhook);
    let body = WebhookBody::new(webhook, manage.disablement());
    ([(header::ETAG, etag)], Json(body)).into_response()
}

/// List webhooks
///
/// In the order of their creation.
#[utoipa::path(
    get, path = "/webhooks", tag = "webhooks", operation_id = "listWebhooks",
    params(
        ("limit" = Option<u8>, Query, description = "The number of webhooks; 50 by default", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page",
         pattern = "^[A-Za-z0-9_-]{28}$"),
    ),
    responses((status = 200, description = "A page of webhooks", body = Page<WebhookBody>,
               headers(("Link" = String, description = "The next page, with rel=\"next\"; not on the last one"))))
)]
pub async fn list(
    State(state): State<ApiState>,
    Caller(user): Caller,
    mut parameters: QueryParameters,
) -> Result<Response, Problem> {
    let limit = parameters.limit();
    let cursor = parameters.cursor(List::Webhooks);
    let target = parameters.finish()?;
    let manage = state.manage();
    let page = manage.webhooks(&user, cursor, limit).await?;
    let page = page.map(|webhook| WebhookBody::new(webhook, manage.disablement()));
    Ok(Page::<WebhookBody>::from(page).response(&target))
}

/// Create a webhook
///
/// The response contains the secret, which is shown only this once.
#[utoipa::path(
    post, path = "/webhooks", tag = "webhooks", operation_id = "createWebhook",
    request_body = CreateWebhook,
    responses(
        (status = 201, description = "Created", body = CreatedWebhook,
         headers(("Location" = String, description = "The webhook's URL"), ("ETag" = String, description = "Its version"))),
        (status = 409, description = "The user has as many webhooks as allowed, or a request with this Idempotency-Key is in progress"),
    )
)]
pub async fn create(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    body: Object,
) -> Result<Response, Problem> {
    let created = state.manage().create_webhook(&actor, body.json()).await?;
    created_response(&state, created)
}

fn created_response(state: &ApiState, created: WebhookWithSecret) -> Result<Response, Problem> {
    let etag = etag(&created.webhook);
    let location = format!("{}/webhooks/{}", state.base_path(), created.webhook.id);
    let location = HeaderValue::try_from(location).map_err(|_| Problem::internal())?;
    let secret = created.secret.expose_secret().to_owned();
    let body = CreatedWebhook {
        webhook: WebhookBody::new(created.webhook, state.manage().disablement()),
        secret,
        warnings: warnings(created.warnings),
    };

    let mut response = (StatusCode::CREATED, [(header::ETAG, etag)], Json(body)).into_response();
    response.headers_mut().insert(header::LOCATION, location);

    Ok(response)
}

/// Read a webhook by its name
#[utoipa::path(
    get, path = "/webhooks/by-name/{name}", tag = "webhooks", operation_id = "readWebhookByName",
    params(
        ("If-None-Match" = Option<String>, Header, description = "Respond with 304 if it still has this version"),
    ),
    responses(
        (status = 200, description = "The webhook", body = WebhookBody,
         headers(("ETag" = String, description = "The version of its settings, whatever its counters are"))),
        (status = 304, description = "It has the version that `If-None-Match` names",
         headers(("ETag" = String, description = "Its version"))),
        (status = 404, description = "No webhook of the user has this name"),
        (status = 409, description = "Several webhooks have this name"),
    )
)]
pub async fn read_by_name(
    State(state): State<ApiState>,
    Caller(user): Caller,
    WebhookName(name): WebhookName,
) -> Result<Response, Problem> {
    let manage = state.manage();

    // No webhook has a name that is not valid.
    let found = match text::name(&name) {
        Ok(name) => manage.webhook_by_name(&user, name).await?,
        Err(_) => None,
    };
    Ok(webhook_response(manage, found.ok_or(Fault::NoSuchWebhook)?))
}

/// Create or replace a webhook
///
/// Creates the webhook with this name, or replaces all its settings: those that the body does not
/// have get their defaults, except `active`, which stays as it is. The same request has the same
/// effect when it is repeated. The response to a creation contains the secret, which is shown only
/// this once.
#[utoipa::path(
    put, path = "/webhooks/by-name/{name}", tag = "webhooks", operation_id = "putWebhook",
    params(
        ("If-Match" = Option<String>, Header, description = "Replace only this version, or with `*` any; create none"),
        ("If-None-Match" = Option<String>, Header, description = "Do not replace this version, or with `*` any"),
    ),
    request_body = ReplaceWebhook,
    responses(
        (status = 200, description = "Replaced", body = UpdatedBody,
         headers(("ETag" = String, description = "Its version"))),
        (status = 201, description = "Created", body = CreatedWebhook,
         headers(("Location" = String, description = "The webhook's URL"), ("ETag" = String, description = "Its version"))),
        (status = 409, description = "Several webhooks have this name, or the user has as many webhooks as allowed"),
    )
)]
pub async fn put(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookName(name): WebhookName,
    headers: HeaderMap,
    body: Object,
) -> Result<Response, Problem> {
    let name = text::name(&name)
        .map_err(|fault| Problem::validation(vec![FieldError::new("/name", fault.to_string())]))?;
    let condition = |found: Option<&Webhook>| match found {
        Some(found) => may_change(&headers, &etag(found)),
        None => may_create(&headers),
    };

    let put = state
        .manage()
        .put_webhook(&actor, name, body.json(), &condition)
        .await?;
    match put {
        PutWebhook::Created(created) => created_response(&state, created),
        PutWebhook::Replaced(updated) => Ok(updated_response(state.manage(), updated)),
    }
}

/// Read a webhook
#[utoipa::path(
    get, path = "/webhooks/{webhook}", tag = "webhooks", operation_id = "readWebhook",
    params(
        ("If-None-Match" = Option<String>, Header, description = "Respond with 304 if it still has this version"),
    ),
    responses(
        (status = 200, description = "The webhook", body = WebhookBody,
         headers(("ETag" = String, description = "The version of its settings, whatever its counters are"))),
        (status = 304, description = "It has the version that `If-None-Match` names",
         headers(("ETag" = String, description = "Its version"))),
    )
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    WebhookId(id): WebhookId,
) -> Result<Response, Problem> {
    let manage = state.manage();
    Ok(webhook_response(manage, manage.webhook(&user, id).await?))
}

/// Edit a webhook
///
/// Deactivating it cancels its pending deliveries, a long backlog in the background. Activating it
/// before that has ended can respond with 503 and `Retry-After`. Activating it after an automatic
/// disablement resets its failure counters.
#[utoipa::path(
    patch, path = "/webhooks/{webhook}", tag = "webhooks", operation_id = "updateWebhook",
    params(
        ("If-Match" = Option<String>, Header, description = "Edit only this version"),
        ("If-None-Match" = Option<String>, Header, description = "Do not edit this version"),
    ),
    request_body = UpdateWebhook,
    responses((status = 200, description = "The webhook after the edit", body = UpdatedBody,
               headers(("ETag" = String, description = "Its version"))))
)]
pub async fn update(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    headers: HeaderMap,
    body: Object,
) -> Result<Response, Problem> {
    let condition = |webhook: &Webhook| may_change(&headers, &etag(webhook));
    let updated = state
        .manage()
        .update_webhook(&actor, id, body.json(), &condition)
        .await?;
    Ok(updated_response(state.manage(), updated))
}

fn updated_response(manage: &Manage, updated: UpdatedWebhook) -> Response {
    let etag = etag(&updated.webhook);
    let body = UpdatedBody {
        webhook: WebhookBody::new(updated.webhook, manage.disablement()),
        warnings: warnings(updated.warnings),
    };

    ([(header::ETAG, etag)], Json(body)).into_response()
}

/// Delete a webhook
///
/// Pending deliveries are cancelled. The delivery log can no longer be read.
#[utoipa::path(
    delete, path = "/webhooks/{webhook}", tag = "webhooks", operation_id = "deleteWebhook",
    params(
        ("If-Match" = Option<String>, Header, description = "Delete only this version"),
        ("If-None-Match" = Option<String>, Header, description = "Do not delete this version"),
    ),
    responses((status = 204, description = "Deleted"))
)]
pub async fn delete(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    headers: HeaderMap,
) -> Result<StatusCode, Problem> {
    let condition = |webhook: &Webhook| may_change(&headers, &etag(webhook));
    state
        .manage()
        .delete_webhook(&actor, id, &condition)
        .await?;

    Ok(StatusCode::NO_CONTENT)
}
