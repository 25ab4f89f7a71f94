//! Detects whether a request used a connection that was already open. A receiver may close an idle connection at the very moment a
//! request is sent on it. That is not an answer, and the request is sent again.

use std::cell::Cell;

tokio::task_local! {
    /// Whether this task's request has started to open a connection. It does not if the pool has an idle one.
    static CONNECTING: Cell<bool>;
}

/// Runs a request. Returns its result, and whether it started to open a connection.
pub async fn watch<T>(request: impl Future<Output = T>) -> (T, bool) {
    let watched = async {
        let result = request.await;
        (result, CONNECTING.with(Cell::get))
    };
    CONNECTING.scope(Cell::new(false), watched).await
}

/// Notes that the current request opens a connection. Connectors are called by the request that needs the connection.
pub fn note_connecting() {
    // The pool may also connect outside of any request: then there is nothing to note.
    let _ = CONNECTING.try_with(|connecting| connecting.set(true));
}
