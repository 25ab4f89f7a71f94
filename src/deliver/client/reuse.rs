//! Whether a request went out on a connection that was open already. A receiver may close an idle connection at the very moment
//! when a request is sent on it: that is no answer of its, and the request is sent again.

use std::cell::Cell;

tokio::task_local! {
    /// Whether the request under way in this task began to connect. With an idle connection in the pool, none does.
    static CONNECTING: Cell<bool>;
}

/// What a request came to, and whether it began to connect.
pub async fn watch<T>(request: impl Future<Output = T>) -> (T, bool) {
    let watched = async {
        let outcome = request.await;
        (outcome, CONNECTING.with(Cell::get))
    };
    CONNECTING.scope(Cell::new(false), watched).await
}

/// Connectors are called by the request that wants the connection.
pub fn note_connecting() {
    // Outside of any request nobody wants to know.
    let _ = CONNECTING.try_with(|connecting| connecting.set(true));
}
