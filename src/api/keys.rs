//! Replaces a webhook's keys.

use axum::Json;
use axum::extract::State;
use secrecy::ExposeSecret;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::OptionalObject;
use super::query::WebhookId;
use super::state::ApiState;
use crate::auth::Changer;
use crate::domain::members::string;
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::manage::{NewKeys, Overlap};

/// How to replace the secret
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // The schema of the body.
pub struct RegenerateSecret {
    /// How long the old secret also signs `webhook-signature`: a duration like `24h`, at most
    /// `168h`. By default it stops working immediately
    #[schema(value_type = Option<String>, nullable = false, example = "24h")]
    #[schema(pattern = "^([0-9]{1,5}s|[0-9]{1,3}m|[0-9]{1,2}h|1[0-5][0-9]h|16[0-8]h)$")]
    overlap: Overlap,
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
/// Replaces the secret, and the ed25519 key pair if the webhook has one. Without `overlap`, the old
/// ones stop working immediately. With it, the old ones also sign `webhook-signature` until it
/// ends; `X-Webhook-Signature` is signed with the new secret only. The new secret is shown only
/// this once.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/regenerate-secret", tag = "webhooks", operation_id = "regenerateSecret",
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
    let overlap =
        body.read(|members| members.optional("overlap", string(|text| text.parse::<Overlap>())))?;
    let NewKeys {
        secret,
        public_key,
        previous_expires_at,
    } = state
        .manage()
        .regenerate_secret(&actor, id, overlap.unwrap_or_default())
        .await?;

    let previous_secret_expires_at = previous_expires_at.map(millis);
    Ok(Json(NewSecret {
        id,
        secret: secret.expose_secret().to_owned(),
        public_key,
        previous_secret_expires_at,
    }))
}
