//! Detects whether a request used a connection that another request had opened. A receiver may
//! close an idle connection at the very moment a request is sent on it. That is not an answer, and
//! the request is sent again.

use std::cell::RefCell;

use super::connection::Connection;

tokio::task_local! {
    /// The connection that this task's request opened last. A request may use another one even so:
    /// the pool also watches for a connection that becomes idle, and takes whichever is usable
    /// first.
    static OPENED: RefCell<Option<Connection>>;
}

/// Runs a request. Returns its result, and the connection that it opened, if any.
pub async fn watch<T>(request: impl Future<Output = T>) -> (T, Option<Connection>) {
    let watched = async {
        let result = request.await;
        (result, OPENED.with(RefCell::take))
    };
    OPENED.scope(RefCell::default(), watched).await
}

/// Notes that the current request opened this connection.
pub fn note(connection: &Connection) {
    // If the request uses another connection, the pool finishes this one outside of any request:
    // then there is nothing to note.
    let _ = OPENED.try_with(|opened| opened.replace(Some(connection.clone())));
}
