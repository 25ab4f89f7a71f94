//! The readers of the feed, and an event as they get it.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::schema::EventName;
use super::state::ApiState;
use crate::auth::bearer_token;
use crate::domain::event::UserId;
use crate::domain::time::micros;
use crate::http::Occupied;
use crate::http::problem::Problem;
use crate::manage::feed::Access;
use crate::manage::{Event, Via};

/// An event
#[derive(Serialize, ToSchema)]
#[schema(as = FeedEvent)]
pub struct EventBody {
    /// The same as in X-Webhook-Event-Id
    id: Uuid,
    #[schema(value_type = EventName)]
    event: String,
    /// When the event's change was committed
    #[schema(format = DateTime)]
    occurred_at: String,
    /// The label that the event is about; null for events of the account
    #[schema(required = true)]
    label_id: Option<i64>,
    /// The same as in deliveries
    #[schema(value_type = Object)]
    data: Box<RawValue>,
}

impl TryFrom<Event> for EventBody {
    type Error = Problem;

    fn try_from(event: Event) -> Result<Self, Problem> {
        let data = RawValue::from_string(event.data).map_err(|error| {
            tracing::error!(event = %event.id, %error, "an event's data is not JSON");
            Problem::internal()
        })?;

        let occurred_at = micros(event.occurred_at);
        Ok(EventBody {
            id: event.id,
            event: event.kind,
            occurred_at,
            label_id: event.label,
            data,
        })
    }
}

/// A client that may wait for events.
pub struct Reader {
    pub user: UserId,
    /// What its right to read depends on while it waits.
    pub access: Access,
    /// The platform's token that it was authenticated with, which expires.
    pub token: Option<Box<str>>,
    pub occupied: Option<Occupied>,
}

impl FromRequestParts<ApiState> for Reader {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Problem> {
        let actor = state.auth.authenticate(parts).await?;
        let session = state.auth.session_id(&parts.headers);
        let (access, token) = match (actor.via, session) {
            (Via::Token(id), _) => (Access::Token(id), None),
            (Via::Session(_), Some(session)) => (Access::of_session(session), None),
            _ => (Access::Other, bearer_token(&parts.headers).map(Box::from)),
        };

        Ok(Reader {
            user: actor.user,
            access,
            token,
            occupied: parts.extensions.get().cloned(),
        })
    }
}
