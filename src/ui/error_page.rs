//! The page that shows an error.

use askama::Template;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;

use super::error::Reason;
use super::format::sentence;
use super::page::{Frame, Section, with_status};
use super::state::UiState;

#[derive(Template)]
#[template(path = "ui/error.html")]
struct Page {
    frame: Frame,
    status: u16,
    title: &'static str,
    detail: String,
    /// Whether the same request may succeed later.
    retryable: bool,
}

/// Renders responses that carry a [`Reason`].
pub async fn render(State(state): State<UiState>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let Some(Reason {
        status,
        title,
        detail,
        retry_after,
    }) = response.extensions_mut().remove()
    else {
        return response;
    };

    let retryable = matches!(
        status,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
    );
    let frame = Frame::new(&state, Section::None);

    let page = Page {
        frame,
        status: status.as_u16(),
        title,
        detail: sentence(&detail),
        retryable,
    };

    let mut rendered = with_status(status, &page);

    if let Some(allowed) = response.headers_mut().remove(header::ALLOW) {
        rendered.headers_mut().insert(header::ALLOW, allowed);
    }

    rendered
        .headers_mut()
        .extend(retry_after.map(|seconds| (header::RETRY_AFTER, seconds)));
    rendered
}
