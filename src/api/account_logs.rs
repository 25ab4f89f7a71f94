//! Searches the delivery logs of all webhooks of an account: page by page, as a file, or as a stream
//! of new entries.

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;

use super::feed::accepts_stream;
use super::feed_reader::Reader;
use super::log_export::{self, ExportFormat};
use super::log_tail;
use super::logs::LogEntryBody;
use super::query::{self, LogFilterParameters, Page, QueryParameters};
use super::schema::LogFormatName;
use super::state::ApiState;
use crate::http::problem::Problem;
use crate::manage::{List, LogScope};

/// Search the delivery logs
///
/// Entries of all webhooks of the account, newest first, or of one of them. Searches by release,
/// catalogue number, track, event, delivery, outcome or failure are answered from indexes; with
/// other filters, each request examines a bounded number of entries. If a search stops early,
/// `partial` is true, and `next_cursor` continues it. Attempts that were made long after the event
/// may be left out of a page that is partial.
///
/// With `format`, all matching entries are returned as a file, up to the end of the log. A file that
/// takes longer than ten minutes is broken off: choose a shorter period.
///
/// With `Accept: text/event-stream`, the response is a stream of Server-Sent Events with the entries
/// that are logged from now on: `event` is `entry`, `id` the entry's id, `data` the same object as in
/// a page. If more entries are logged at once than are sent, `skipped` takes their place. `limit`,
/// `cursor` and `format` do not apply.
#[utoipa::path(
    get, path = "/logs", tag = "logs", operation_id = "searchLogs",
    params(
        ("limit" = Option<u8>, Query, description = "The number of entries; 50 by default", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page",
         pattern = "^[A-Za-z0-9_-]{28}$"),
        ("format" = Option<LogFormatName>, Query, description = "All matching entries as a file"),
        ("webhook" = Option<Uuid>, Query, description = "Only this webhook"),
        LogFilterParameters,
    ),
    responses(
        (status = 200, description = "A page of the delivery logs, a file or a stream",
         content((Page<LogEntryBody> = "application/json"), (String = "text/csv"), (String = "application/x-ndjson"),
                 (String = "text/event-stream")),
         headers(("Link" = String, description = "The next page, with rel=\"next\"; not on the last one"))),
        (status = 404, description = "The user has no such webhook"),
    )
)]
pub async fn list(
    State(state): State<ApiState>,
    reader: Reader,
    headers: HeaderMap,
    mut parameters: QueryParameters,
) -> Result<Response, Problem> {
    let limit = parameters.limit();
    let cursor = parameters.cursor(List::AllLogs);
    let format = parameters.optional("format", ExportFormat::parse);
    let webhook = parameters.optional("webhook", query::id);
    let filter = parameters.log_filter();
    let target = parameters.finish()?;

    let scope = match webhook {
        Some(webhook) => {
            state.manage().webhook(&reader.user, webhook).await?;
            LogScope::WebhookOfAccount(webhook)
        }
        None => LogScope::Account,
    };

    let mut response = if accepts_stream(&headers) {
        log_tail::respond(state, reader, scope, filter)?
    } else if let Some(format) = format {
        log_export::respond(state, &reader, scope, filter, format)?
    } else {
        let manage = state.manage();
        let page = manage
            .log(&reader.user, &scope, &filter, cursor, limit)
            .await?;
        Page::<LogEntryBody>::from(page).response(&target)
    };

    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("accept"));
    Ok(response)
}
