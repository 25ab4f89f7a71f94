//! Borrowed connections, and the cancellation of statements whose request was dropped.

use std::future::Future;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use deadpool_postgres::Object;
use tokio_postgres::NoTls;
use tokio_postgres_rustls::MakeRustlsConnect;

/// A cancellation needs its own connection. If it takes longer, the server's `statement_timeout`
/// ends the statement.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);

tokio::task_local! {
    static REQUEST: Arc<AtomicBool>;
}

/// Runs `work`. If the returned future is dropped before it ends, the running statements of `work`
/// are cancelled on the server, and their connections are closed. Otherwise a statement would keep
/// running on a connection that the next borrower waits for. Tasks that `work` spawns are not
/// affected.
pub fn cancel_on_drop<T>(work: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
    let abandoned = Arc::new(AtomicBool::new(false));
    Abandonable {
        work: Box::pin(REQUEST.scope(abandoned.clone(), work)),
        abandoned,
    }
}

struct Abandonable<F> {
    work: Pin<Box<F>>,
    abandoned: Arc<AtomicBool>,
}

impl<F: Future> Future for Abandonable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.work.as_mut().poll(context)
    }
}

impl<F> Drop for Abandonable<F> {
    /// Runs before `work`, and the connections that it holds, are dropped. Finished work holds
    /// none.
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

/// How cancel requests reach the server.
#[derive(Clone)]
pub(super) struct Canceller(pub Option<MakeRustlsConnect>);

/// A borrowed connection. Dropping it returns it to the pool, or closes it if the request that
/// borrowed it was dropped.
pub struct Connection {
    object: Option<Object>,
    canceller: Canceller,
    /// Whether the request that borrowed it was dropped. `None` outside of a request.
    abandoned: Option<Arc<AtomicBool>>,
}

impl Connection {
    pub(super) fn new(object: Object, canceller: Canceller) -> Connection {
        Connection {
            object: Some(object),
            canceller,
            abandoned: REQUEST.try_with(Arc::clone).ok(),
        }
    }

    /// Closes the connection, which rolls back an open transaction.
    pub(super) fn close(mut self) {
        if let Some(object) = self.object.take() {
            drop(Object::take(object));
        }
    }
}

impl Deref for Connection {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.object.as_ref().expect("present until it is dropped")
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Object {
        self.object.as_mut().expect("present until it is dropped")
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let is_abandoned = self
            .abandoned
            .as_ref()
            .is_some_and(|abandoned| abandoned.load(Ordering::Relaxed));
        if !is_abandoned {
            return;
        }

        // Without a runtime the process is ending, and cannot cancel anything.
        let (Some(object), Ok(runtime)) =
            (self.object.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };

        let (token, Canceller(tls)) = (object.cancel_token(), self.canceller.clone());
        runtime.spawn(async move {
            let cancelled = async {
                match tls {
                    Some(tls) => token.cancel_query(tls).await,
                    None => token.cancel_query(NoTls).await,
                }
            };

            if !matches!(tokio::time::timeout(CANCEL_TIMEOUT, cancelled).await, Ok(Ok(()))) {
                tracing::debug!("a statement of an abandoned request could not be cancelled; it ends by its timeout");
            }

            // Held until now, so that abandoned statements count against the pool's limit.
            drop(Object::take(object));
        });
    }
}
