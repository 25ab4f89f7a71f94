//! Replaces a webhook's keys, and publishes the public ones.

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use secrecy::ExposeSecret;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::auth::Changer;
use super::body::{FromMembers, Members, OptionalObject, string};
use super::problem::Problem;
use super::query::{Parameters, WebhookId};
use super::state::{ApiState, Requester};
use super::strict_query::reject_unknown;
use crate::domain::time::millis;
use crate::manage::{Manage, NewKeys, Overlap, PublicKey, PublicKeyCursor, PublicKeys};

/// The path of the public keys. Not below the base path, like other well-known documents (RFC 8615).
pub const PUBLIC_KEYS_PATH: &str = "/.well-known/walhook-keys.json";
/// A receiver learns of a new key this much later, at the latest: much less than a useful overlap.
const CACHE_CONTROL: &str = "public, max-age=300";

/// How to replace the secret
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegenerateSecret {
    /// How long the old secret also signs `webhook-signature`: a duration like `24h`, at most `168h`. By default it stops working
    /// immediately
    #[schema(value_type = Option<String>, nullable = false, example = "24h")]
    #[schema(pattern = "^([0-9]{1,5}s|[0-9]{1,3}m|[0-9]{1,2}h|1[0-5][0-9]h|16[0-8]h)$")]
    overlap: Overlap,
}

impl FromMembers for RegenerateSecret {
    fn from_members(members: &mut Members, _: &Manage) -> Option<Self> {
        let overlap = members.optional("overlap", string(|text| text.parse::<Overlap>()));
        Some(RegenerateSecret { overlap: overlap?.unwrap_or_default() })
    }
}

/// A webhook's new secret, which is shown only this once
#[derive(Serialize, ToSchema)]
pub struct NewSecret {
    id: Uuid,
    /// The key of the signatures: the whole string's bytes
    #[schema(example = "whsec_…")]
    secret: String,
    /// The new ed25519 key; null unless the webhook's `signing` names ed25519
    #[schema(required = true, example = "whpk_…")]
    public_key: Option<String>,
    /// When the old secret stops signing; null without an overlap
    #[schema(required = true, format = DateTime)]
    previous_secret_expires_at: Option<String>,
}

/// Regenerate the secret
///
/// Replaces the secret, and the ed25519 key pair if the webhook has one. Without `overlap`, the old ones stop working immediately. With it,
/// the old ones also sign `webhook-signature` until it ends; `X-Webhook-Signature` is signed with the new secret only. The new secret is
/// shown only this once.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/regenerate-secret", tag = "webhooks", operation_id = "regenerateSecret",
    params(("webhook" = Uuid, Path, description = "The webhook's id")),
    request_body(content = Option<RegenerateSecret>),
    responses((status = 200, description = "The new secret", body = NewSecret))
)]
pub async fn regenerate_secret(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    WebhookId(id): WebhookId,
    OptionalObject(body): OptionalObject,
) -> Result<Json<NewSecret>, Problem> {
    // First, so that an unknown webhook is reported before errors of the body.
    state.manage().webhook(&actor.user, id).await?;
    let RegenerateSecret { overlap } = body.read(state.manage())?;
    let NewKeys { secret, public_key, previous_expires_at } =
        state.manage().regenerate_secret(&actor, id, overlap).await?;
    let previous_secret_expires_at = previous_expires_at.map(millis);
    Ok(Json(NewSecret { id, secret: secret.expose_secret().to_owned(), public_key, previous_secret_expires_at }))
}

#[derive(Serialize)]
struct PublicKeysBody {
    keys: Vec<PublicKeyBody>,
    next_cursor: Option<String>,
}

#[derive(Serialize)]
struct PublicKeyBody {
    id: String,
    algorithm: &'static str,
    public_key: String,
    expires_at: Option<String>,
}

impl From<PublicKey> for PublicKeyBody {
    fn from(PublicKey { id, key, expires_at }: PublicKey) -> Self {
        PublicKeyBody { id, algorithm: "ed25519", public_key: key, expires_at: expires_at.map(millis) }
    }
}

/// Serves the public keys to anybody: those of one webhook, whose id its receiver knows, or those of all, which do not name their webhooks.
pub async fn public_keys(
    State(state): State<ApiState>,
    RawQuery(query): RawQuery,
    mut parameters: Parameters,
) -> Result<Response, Problem> {
    state.count_request(Requester::PublicKeysReader)?;
    reject_unknown(&query.unwrap_or_default(), &["webhook", "cursor"])?;
    let webhook = parameters.optional("webhook", |text| text.parse::<Uuid>().map_err(|_| "expected a UUID".to_owned()));
    let after = parameters.position("cursor", |text| {
        PublicKeyCursor::parse(text).ok_or_else(|| "is not a cursor of this list".to_owned())
    });
    parameters.finish()?;
    let PublicKeys { keys, next } = state.manage().public_keys(webhook, after.unwrap_or_default()).await?;
    let keys = keys.into_iter().map(PublicKeyBody::from).collect();
    let body = PublicKeysBody { keys, next_cursor: next.map(|cursor| cursor.to_string()) };
    Ok(([(header::CACHE_CONTROL, CACHE_CONTROL)], Json(body)).into_response())
}
