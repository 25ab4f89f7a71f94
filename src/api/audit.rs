//! Reads the user's records in the audit log.

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::query::{self, Page, QueryParameters};
use super::schema::{ActionName, ViaName};
use super::state::ApiState;
use crate::auth::Caller;
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::manage::{AuditRecord, List, RecordFilter};

/// A change in the account
#[derive(Serialize, ToSchema)]
#[schema(as = AuditRecord)]
pub struct RecordBody {
    id: Uuid,
    #[schema(value_type = ActionName)]
    action: String,
    #[schema(format = DateTime)]
    timestamp: String,
    /// How the change was requested: with an API token, with a token of the platform, in a session
    /// of the web UI, by the operator's command line, or by nobody
    #[schema(value_type = ViaName)]
    via: String,
    /// The API token of the request, or that the session was opened with
    #[schema(required = true)]
    token_id: Option<Uuid>,
    /// Null if the token no longer exists
    #[schema(required = true)]
    token_name: Option<String>,
    /// The id of the webhook or token
    #[schema(required = true)]
    subject_id: Option<Uuid>,
    /// Its present name; null if it no longer exists
    #[schema(required = true)]
    subject_name: Option<String>,
    /// The names of the members that were changed. Values are not recorded
    changed: Vec<String>,
    /// The number of changes. After 1,000 records of a day (UTC), further changes of one kind share a
    /// record, which describes the last of them
    count: u64,
    /// When the last of several changes was made; null if there is one
    #[schema(required = true, format = DateTime)]
    last_timestamp: Option<String>,
}

impl From<AuditRecord> for RecordBody {
    fn from(record: AuditRecord) -> Self {
        RecordBody {
            id: record.id,
            action: record.action,
            timestamp: millis(record.at),
            via: record.via,
            token_id: record.token,
            token_name: record.token_name,
            subject_id: record.subject,
            subject_name: record.subject_name,
            changed: record.changed,
            count: record.count,
            last_timestamp: record.last_at.map(millis),
        }
    }
}

/// Read the audit log
///
/// Who changed what in the account, and when: newest first, for the retention period.
#[utoipa::path(
    get, path = "/audit", tag = "tokens", operation_id = "listAudit",
    params(
        ("limit" = Option<u8>, Query, description = "The number of records; 50 by default", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page",
         pattern = "^[A-Za-z0-9_-]{28}$"),
        ("subject" = Option<Uuid>, Query, description = "Only changes of this webhook or token"),
        ("action" = Option<ActionName>, Query, description = "Only this kind of change"),
    ),
    responses((status = 200, description = "A page of records", body = Page<RecordBody>,
               headers(("Link" = String, description = "The next page, with rel=\"next\"; not on the last one"))))
)]
pub async fn list(
    State(state): State<ApiState>,
    Caller(user): Caller,
    mut parameters: QueryParameters,
) -> Result<Response, Problem> {
    let limit = parameters.limit();
    let cursor = parameters.cursor(List::Audit);
    let filter = RecordFilter {
        subject: parameters.optional("subject", query::id),
        action: parameters.optional("action", str::parse),
    };
    let target = parameters.finish()?;
    let page = state
        .manage()
        .audit_records(&user, filter, cursor, limit)
        .await?;
    Ok(Page::<RecordBody>::from(page).response(&target))
}
