//! A listener and what answers on it.

use std::future::ready;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{HeaderValue, header};
use axum::middleware::map_response;
use axum::response::Response;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}, set by {setting}: {source}")]
    Bind { address: SocketAddr, setting: &'static str, source: std::io::Error },
    #[error(transparent)]
    Serve(#[from] std::io::Error),
}

/// The end of a listener, in two steps.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Requests are answered, and each answer is its connection's last.
    pub announced: CancellationToken,
    /// No connection is taken any more.
    pub closed: CancellationToken,
}

/// Binds now, so that a port in use is told before anything starts; the future serves until the end, then lets requests end.
pub async fn serve(
    address: SocketAddr,
    setting: &'static str,
    router: Router,
    ending: Ending,
) -> Result<impl Future<Output = Result<(), ServeError>> + Send, ServeError> {
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, setting, source })?;
    tracing::info!(address = %listener.local_addr()?, setting, "listening");
    let Ending { announced, closed } = ending;
    // Whoever keeps connections learns at his next request that this one goes, and not by a request that fails.
    let router = router.layer(map_response(move |mut response: Response| {
        if announced.is_cancelled() {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        ready(response)
    }));
    Ok(async move { Ok(axum::serve(listener, router).with_graceful_shutdown(closed.cancelled_owned()).await?) })
}
