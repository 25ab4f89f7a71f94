//! The user's records in the audit log.

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;

use super::error::PageError;
use super::fields::Fields;
use super::format::{Count, sentence};
use super::page::{Frame, Pages, Section, page};
use super::state::{link, webhook_path};
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
    pages: Pages,
}

/// Returns a name such as `webhook.secret_regenerated` as words.
fn label(action: &str) -> String {
    let action = match action {
        "webhook.redelivered" => "delivery.redelivered",
        "webhook.recovery_begun" => "recovery.started",
        other => other,
    };
    let words = sentence(&action.replace(['.', '_'], " "));
    words.trim_end_matches('.').to_owned()
}

/// Returns when the change was made, or the last of several.
fn latest(record: &AuditRecord) -> Timestamp {
    record.last_at.unwrap_or(record.at)
}

/// Returns who made a change.
fn who(record: &AuditRecord) -> String {
    let is_sign_in = record.action == Action::SignedIn.as_str();
    let place = match record.via.as_str() {
        "token" if is_sign_in => "Web UI",
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
    let path = if record.action.starts_with("token.") {
        "/ui/tokens".to_owned()
    } else {
        webhook_path(id, "")
    };

    Some(path)
}

pub async fn list(visit: Visit, fields: Fields) -> Result<Response, PageError> {
    let cursor = fields.linked("cursor", |text| Cursor::parse(List::Audit, text))?;
    let subject = fields.linked("subject", str::parse)?;
    let action = fields.linked("action", str::parse)?;
    let filter = RecordFilter { subject, action };
    let found = visit
        .manage()
        .audit_records(visit.user(), filter, cursor, PAGE)
        .await?;

    let path = |cursor: &str| {
        let subject = ("subject", fields.one("subject"));
        let action = ("action", fields.one("action"));
        link(PATH, [subject, action, ("cursor", cursor)])
    };

    let template = AuditPage {
        frame: visit.frame(Section::Account),
        records: found.items,
        is_filtered: subject.is_some() || action.is_some(),
        pages: Pages::new(fields.one("cursor"), found.next, path),
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
