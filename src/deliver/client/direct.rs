//! Connections directly to receivers. Names are resolved by the guard, which returns checked
//! addresses only; literal addresses are checked before a request is made.

use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use tower::util::BoxCloneSyncService;
use tower::{ServiceExt, service_fn};

use super::connector::{Dialer, tcp};
use crate::deliver::settings::Settings;

/// Creates the dialer of receivers.
pub fn dialer(settings: &Settings) -> Dialer {
    let guard = settings.guard.clone();
    let resolver = service_fn(move |name: Name| {
        let guard = guard.clone();
        // The connector replaces port 0 by the URL's port.
        async move { guard.resolve(name.as_str(), 0).await.map(Vec::into_iter) }
    });

    // The timeout is divided among the addresses of a name, so that a silent address leaves time
    // for the others.
    let tcp: HttpConnector<_> = tcp(HttpConnector::new_with_resolver(resolver), settings.timeout);
    BoxCloneSyncService::new(tcp.map_response(MaybeHttpsStream::Http).map_err(Into::into))
}
