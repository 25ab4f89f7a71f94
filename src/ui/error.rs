//! Errors of pages. Handlers return a [`PageError`]; `error_page` renders it.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;

use crate::http::problem::Problem;

/// The reason why a page cannot be shown.
#[derive(Debug)]
pub struct PageError(pub Problem);

impl<E: Into<Problem>> From<E> for PageError {
    fn from(error: E) -> Self {
        PageError(error.into())
    }
}

/// The content of an error page, attached to a response without a body.
#[derive(Clone)]
pub struct Reason {
    pub status: StatusCode,
    pub title: &'static str,
    pub detail: String,
    /// The header `Retry-After`.
    pub retry_after: Option<HeaderValue>,
}

impl PageError {
    pub fn no_such_page() -> PageError {
        PageError(Problem::not_found("this page does not exist"))
    }

    /// Returns an empty response that carries the reason.
    pub fn mark<B: Default>(self) -> Response<B> {
        let PageError(problem) = self;
        let status = problem.status();
        let title = problem.title();
        let detail = problem.detail().to_owned();
        let reason = Reason {
            status,
            title,
            detail,
            retry_after: problem.retry_after_value().cloned(),
        };

        let mut response = Response::new(B::default());
        *response.status_mut() = problem.status();
        response.extensions_mut().insert(reason);

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
