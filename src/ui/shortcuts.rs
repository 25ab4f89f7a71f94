//! The page that lists the keyboard shortcuts of the script, which shows it as a dialog.

use askama::Template;
use axum::response::Response;

use super::page::{Frame, Section, page};
use super::visit::Visit;

/// The pages that are opened by `g` and a letter: the letter, the path and the name.
const PLACES: [(&str, &str, &str); 5] = [
    ("w", "/ui", "Webhooks"),
    ("d", "/ui/logs", "Deliveries"),
    ("e", "/ui/events", "Events"),
    ("t", "/ui/tokens", "API tokens"),
    ("a", "/ui/audit", "Audit log"),
];

#[derive(Template)]
#[template(path = "ui/shortcuts.html")]
struct ShortcutsPage {
    frame: Frame,
}

pub async fn show(visit: Visit) -> Response {
    page(&ShortcutsPage {
        frame: visit.frame(Section::None),
    })
}
