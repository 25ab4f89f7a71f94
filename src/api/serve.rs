//! A listener and what answers on it.

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {address}, set by {setting}: {source}")]
    Bind { address: SocketAddr, setting: &'static str, source: std::io::Error },
    #[error(transparent)]
    Serve(#[from] std::io::Error),
}

/// Binds now, so that a port in use is told before anything starts; the future serves until shutdown, then lets requests end.
pub async fn serve(
    address: SocketAddr,
    setting: &'static str,
    router: Router,
    shutdown: CancellationToken,
) -> Result<impl Future<Output = Result<(), ServeError>> + Send, ServeError> {
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Bind { address, setting, source })?;
    tracing::info!(address = %listener.local_addr()?, setting, "listening");
    Ok(async move {
        let stop = shutdown.cancelled_owned();
        Ok(axum::serve(listener, router).with_graceful_shutdown(stop).await?)
    })
}
