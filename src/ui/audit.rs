//! The user's records in the audit log.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use url::form_urlencoded::Serializer;
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::format::{Count, sentence};
use super::page::{Frame, Section, page};
use super::state::webhook_path;
use super::time::Ago;
use super::visit::Visit;
use crate::manage::{Action, AuditRecord, Cursor, List, RecordFilter};

const PATH: &str = "/ui/audit";
const PAGE: usize = 50;

#[derive(Template)]
#[template(path = "ui/audit.html")]
struct AuditPage {
    frame: Frame,
    fields: Fields,
    records: Vec<AuditRecord>,
    is_filtered: bool,
    is_first: bool,
    /// The paths of the first page of this list, and of the next.
    first: String,
    next: Option<String>,
}

/// Returns a name such as `webhook.secret_regenerated` as words.
fn label(action: &str) -> String {
    let words = sentence(&action.replace(['.', '_'], " "));
    words.trim_end_matches('.').to_owned()
}

/// Returns when the change was made, or the last of several.
fn latest(record: &AuditRecord) -> Timestamp {
    record.last_at.unwrap_or(record.at)
}

/// Returns who made a change.
fn who(record: &AuditRecord) -> String {
    let place = match record.via.as_str() {
        "token" => "API",
        "session" => "Web UI",
        "jwt" => "Platform",
        "command_line" => "Operator",
        _ => "Automatic",
    };

    match record.token_name.as_deref() {
        Some("") | None => place.to_owned(),
        Some(name) => format!("{place}, token “{name}”"),
    }
}

/// Returns the page of a webhook or token that still exists and has a name.
fn subject_path(record: &AuditRecord) -> Option<String> {
    let name = record.subject_name.as_deref().unwrap_or_default();
    let id = record.subject.filter(|_| !name.is_empty())?;
    Some(match record.action.starts_with("token.") {
        true => "/ui/tokens".to_owned(),
        false => webhook_path(id, ""),
    })
}

pub async fn list(visit: Visit, fields: Fields) -> Result<Response, PageError> {
    let text = |name| Some(fields.one(name)).filter(|text| !text.is_empty());
    let no_such_page = |_| PageError::no_such_page();
    let cursor = text("cursor").map(|text| Cursor::parse(List::Audit, text));
    let cursor = cursor.transpose().map_err(|_| PageError::no_such_page())?;
    let subject: Option<Uuid> = text("subject")
        .map(str::parse)
        .transpose()
        .map_err(no_such_page)?;
    let action: Option<Action> = text("action")
        .map(str::parse)
        .transpose()
        .map_err(|_| PageError::no_such_page())?;

    let filter = RecordFilter { subject, action };
    let found = visit
        .manage()
        .audit_records(visit.user(), filter, cursor, PAGE)
        .await?;

    let query = |cursor: Option<String>| {
        let subject = subject.map(|id| id.to_string());
        let action = action.map(|action| action.as_str().to_owned());
        let given = [("subject", subject), ("action", action), ("cursor", cursor)];
        let given = given
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let query = Serializer::new(String::new()).extend_pairs(given).finish();
        format!("{PATH}?{query}").trim_end_matches('?').to_owned()
    };

    let template = AuditPage {
        frame: visit.frame(Section::Account),
        records: found.items,
        is_filtered: subject.is_some() || action.is_some(),
        is_first: cursor.is_none(),
        first: query(None),
        next: found.next.map(|next| query(Some(next.to_string()))),
        fields,
    };

    Ok(page(&template))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_shown_as_words() {
        assert_eq!(
            label("webhook.secret_regenerated"),
            "Webhook secret regenerated"
        );
    }
}
