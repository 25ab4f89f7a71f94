//! The frame of every page, and responses made from templates.

use std::fmt;
use std::sync::Arc;

use askama::Template;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Redirect, Response};

use super::flash::Flash;
use super::state::{HOME, UiState};
use crate::http::Brand;

/// The values that every page shows besides its content.
pub struct Frame {
    pub brand: Arc<Brand>,
    /// The origins that may show the page in a frame.
    pub ancestors: Arc<str>,
    /// Whether a frame shows the page: the page around it has the name and the account.
    pub is_framed: bool,
    /// The signed-in user.
    pub user: Option<String>,
    /// Whether the user has signed in with a token that may only read.
    pub is_read_only: bool,
    /// The result of the previous request.
    pub flash: Option<Flash>,
    pub section: Section,
    /// The path of the API reference.
    pub docs: String,
}

/// The navigation entry that is marked as current.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Webhooks,
    Logs,
    Events,
    Guide,
    /// Tokens and the audit log.
    Account,
    None,
}

/// The main navigation without the API reference: section, path and name.
pub const SECTIONS: [(Section, &str, &str); 5] = [
    (Section::Webhooks, HOME, "Webhooks"),
    (Section::Logs, "/ui/logs", "Deliveries"),
    (Section::Events, "/ui/events", "Events"),
    (Section::Account, "/ui/tokens", "Account"),
    (Section::Guide, "/ui/guide", "Guide"),
];

/// The links from one page of a list to others.
pub struct Pages {
    /// The path of the first page. None on it.
    pub newest: Option<String>,
    pub next: Option<String>,
}

impl Pages {
    /// The page starts at `cursor`, which is empty on the first one. `path` returns the path of the
    /// page that starts at a cursor.
    pub fn new(
        cursor: &str,
        next: Option<impl fmt::Display>,
        path: impl Fn(&str) -> String,
    ) -> Pages {
        Pages {
            newest: (!cursor.is_empty()).then(|| path("")),
            next: next.map(|next| path(&next.to_string())),
        }
    }
}

impl Frame {
    /// Returns the frame of a page that anybody may see.
    pub fn new(state: &UiState, is_framed: bool, section: Section) -> Frame {
        let docs = format!("{}/docs", state.api.base_path());
        Frame {
            brand: state.api.brand.clone(),
            ancestors: state.ancestors.clone(),
            is_framed,
            user: None,
            is_read_only: false,
            flash: None,
            section,
            docs,
        }
    }
}

/// Whether the browser says that it shows the response in a frame.
pub fn is_framed(headers: &HeaderMap) -> bool {
    headers
        .get("sec-fetch-dest")
        .is_some_and(|destination| destination == "iframe")
}

pub fn page(template: &impl Template) -> Response {
    Html(template.render().expect("writing to memory cannot fail")).into_response()
}

/// Responds with a page that is not a success, such as a form with errors.
pub fn with_status(status: StatusCode, template: &impl Template) -> Response {
    (status, page(template)).into_response()
}

/// Responds with the page of a query, which shows the errors of an invalid one.
pub fn validated(is_valid: bool, template: &impl Template) -> Response {
    let status = if is_valid {
        StatusCode::OK
    } else {
        StatusCode::UNPROCESSABLE_ENTITY
    };
    with_status(status, template)
}

/// Marks a response that holds a secret. It is not compressed, because its length would reveal
/// something about the secret.
#[derive(Clone, Copy)]
pub struct HoldsSecret;

pub fn secret_page(template: &impl Template) -> Response {
    let mut response = page(template);
    response.extensions_mut().insert(HoldsSecret);
    response
}

/// Redirects to a page that shows `flash`.
pub fn redirect(to: &str, flash: Flash) -> Response {
    let mut response = Redirect::to(to).into_response();
    response.extensions_mut().insert(flash);
    response
}
