//! A delivery made again, because its receiver's owner asks for it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::ApiState;
use super::auth::Changer;
use super::problem::{Problem, ProblemBody};
use super::query::{LogId, no_such_log};
use crate::store::audit::Actor;
use crate::store::recovery::{self, Redelivery};

/// The round that was begun
#[derive(Serialize, ToSchema)]
pub struct RedeliveryBegun {
    /// The same as before
    delivery_id: Uuid,
    /// Its attempts are counted from 1 again
    pub round: u16,
}

/// Redeliver
///
/// Begins the next round of the entry's delivery, with the whole retry schedule, in the place of a retry still pending. The
/// request goes to the webhook's present address and is signed with its present secret.
#[utoipa::path(
    post, path = "/webhooks/{webhook}/logs/{log}/redeliver", tag = "logs", operation_id = "redeliver",
    params(
        ("webhook" = Uuid, Path, description = "The webhook's id"),
        ("log" = Uuid, Path, description = "The id of any entry of the delivery"),
    ),
    responses(
        (status = 202, description = "The delivery is due now", body = RedeliveryBegun),
        (status = 409, description = "The webhook is inactive, or the entry is a test's", body = ProblemBody,
         content_type = "application/problem+json"),
        (status = 410, description = "The event is gone by age", body = ProblemBody,
         content_type = "application/problem+json"),
    )
)]
pub async fn redeliver(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    LogId { webhook, log }: LogId,
) -> Result<(StatusCode, Json<RedeliveryBegun>), Problem> {
    state.redeliver(&actor, webhook, log).await.map(|begun| (StatusCode::ACCEPTED, Json(begun)))
}

impl ApiState {
    /// Begins the next round of the delivery that an entry of the log is about.
    pub async fn redeliver(&self, actor: &Actor, webhook: Uuid, log: Uuid) -> Result<RedeliveryBegun, Problem> {
        match recovery::redeliver(&self.store, actor, webhook, log).await? {
            Redelivery::Started { delivery, round } => {
                tracing::info!(%webhook, %delivery, round, user = %actor.user, "redelivery begun");
                Ok(RedeliveryBegun { delivery_id: delivery, round })
            }
            Redelivery::NoSuchLog => Err(no_such_log()),
            Redelivery::Inactive => Err(Problem::webhook_inactive()),
            Redelivery::Test => Err(Problem::not_redeliverable("a test is not redelivered: send another one")),
            Redelivery::TooManyRounds => {
                Err(Problem::not_redeliverable("the delivery has had all the rounds there are"))
            }
            Redelivery::EventGone => Err(Problem::event_gone()),
        }
    }
}
