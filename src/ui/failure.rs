//! Errors as pages.

use askama::Template;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::UiState;
use super::answer::{Frame, Section, page};
use crate::api::Problem;

/// A page that could not be shown. [`render`] makes a page of the reason.
#[derive(Debug)]
pub struct Failure(pub Problem);

impl<E: Into<Problem>> From<E> for Failure {
    fn from(error: E) -> Self {
        Failure(error.into())
    }
}

/// The reason, on its way to [`render`].
#[derive(Clone)]
struct Reason {
    status: StatusCode,
    title: &'static str,
    detail: String,
}

impl Failure {
    /// An answer for [`render`] to fill.
    pub fn mark<B: Default>(self) -> axum::http::Response<B> {
        let Failure(problem) = self;
        let reason = Reason { status: problem.status(), title: problem.title(), detail: problem.detail().to_owned() };
        let mut response = axum::http::Response::new(B::default());
        *response.status_mut() = problem.status();
        response.extensions_mut().insert(reason);
        response
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.mark()
    }
}

#[derive(Template)]
#[template(path = "ui/failure.html")]
struct Page {
    frame: Frame,
    status: u16,
    title: &'static str,
    detail: String,
    /// Whether asking again may help.
    passes: bool,
}

/// Makes pages of failures.
pub async fn render(State(state): State<UiState>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let Some(Reason { status, title, detail }) = response.extensions_mut().remove() else { return response };
    let passes = matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
    let frame = Frame::bare(&state, Section::None);
    let shown = page(&Page { frame, status: status.as_u16(), title, detail: sentence(&detail), passes });
    let mut answer = (status, shown).into_response();
    if let Some(allowed) = response.headers().get(header::ALLOW) {
        answer.headers_mut().insert(header::ALLOW, allowed.clone());
    }
    answer
}

/// A panic is logged by the panic hook; the visitor learns no more than that there was a fault.
pub fn answer_panic(_: Box<dyn std::any::Any + Send>) -> Response<Body> {
    tracing::error!("a page's handler panicked");
    Failure(Problem::internal()).mark()
}

/// The API's problems begin in lower case and have no full stop.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", letters.as_str())
}
