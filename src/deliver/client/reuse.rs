//! Detects whether a request used a connection that another request had opened. A receiver may close an idle connection at the very
//! moment a request is sent on it. That is not an answer, and the request is sent again.

use std::cell::Cell;
use std::net::SocketAddr;

use hyper::http::Extensions;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpInfo};

tokio::task_local! {
    /// The connection that this task's request opened last. A request may use another one even so: the pool also watches for a
    /// connection that becomes idle, and takes whichever is usable first.
    static OPENED: Cell<Option<Addresses>>;
}

/// The addresses of both ends of an open TCP connection, which identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    local: SocketAddr,
    remote: SocketAddr,
}

impl Addresses {
    pub fn of(connected: &Connected) -> Option<Addresses> {
        let mut extensions = Extensions::new();
        connected.get_extras(&mut extensions);
        let info: &HttpInfo = extensions.get()?;
        Some(Addresses { local: info.local_addr(), remote: info.remote_addr() })
    }
}

/// Runs a request. Returns its result, and the connection that it opened, if any.
pub async fn watch<T>(request: impl Future<Output = T>) -> (T, Option<Addresses>) {
    let watched = async {
        let result = request.await;
        (result, OPENED.with(Cell::get))
    };
    OPENED.scope(Cell::new(None), watched).await
}

/// Notes that the current request opened this connection, and returns the connection.
pub fn noted<C: Connection>(connection: C) -> C {
    // If the request uses another connection, the pool finishes this one outside of any request: then there is nothing to note.
    let _ = OPENED.try_with(|opened| opened.set(Addresses::of(&connection.connected())));
    connection
}
