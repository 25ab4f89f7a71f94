//! Errors of pages, and the page that shows them.

use askama::Template;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode, header};
use axum::middleware::Next;
use axum::response::IntoResponse;

use super::format::sentence;
use super::page::{Frame, Section, is_framed, with_status};
use super::state::UiState;
use crate::http::middleware::RequestId;
use crate::http::problem::Problem;

/// The reason why a page cannot be shown.
#[derive(Debug)]
pub struct PageError(pub Problem);

impl<E: Into<Problem>> From<E> for PageError {
    fn from(error: E) -> Self {
        PageError(error.into())
    }
}

impl PageError {
    pub fn no_such_page() -> PageError {
        PageError(Problem::not_found("this page does not exist"))
    }

    /// Returns an empty response that carries the reason, which [`render`] shows.
    pub fn mark<B: Default>(self) -> Response<B> {
        let PageError(problem) = self;
        let mut response = Response::new(B::default());

        *response.status_mut() = problem.status();
        response.extensions_mut().insert(problem);
        response
    }
}

impl IntoResponse for PageError {
    fn into_response(self) -> axum::response::Response {
        self.mark()
    }
}

/// Responds to a panic, whose message the panic hook has logged.
pub fn from_panic(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!("a page's handler panicked");
    PageError(Problem::internal()).mark()
}

#[derive(Template)]
#[template(path = "ui/error.html")]
struct FailurePage {
    frame: Frame,
    status: u16,
    title: &'static str,
    detail: String,
    id: RequestId,
    /// Whether the same request may succeed later.
    retryable: bool,
}

/// Renders responses that carry the reason of an error.
pub async fn render(
    State(state): State<UiState>,
    mut request: Request,
    next: Next,
) -> Response<Body> {
    let id = RequestId::of(&mut request);
    let framed = is_framed(request.headers());
    let mut response = next.run(request).await;
    let Some(problem) = response.extensions_mut().remove::<Problem>() else {
        return response;
    };

    let status = problem.status();
    let page = FailurePage {
        frame: Frame::new(&state, framed, Section::None),
        status: status.as_u16(),
        title: problem.title(),
        detail: sentence(problem.detail()),
        id,
        retryable: matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        ),
    };

    let mut rendered = with_status(status, &page);
    let headers = rendered.headers_mut();
    let allowed = response.headers_mut().remove(header::ALLOW);
    let retry_after = problem.retry_after_value().cloned();

    headers.extend(allowed.map(|methods| (header::ALLOW, methods)));
    headers.extend(retry_after.map(|seconds| (header::RETRY_AFTER, seconds)));
    rendered
}
