//! A connection to a receiver: bounds what the receiver sends, inside and outside TLS, and knows
//! when the connection ends, for all exchanges that use it.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::http::Extensions;
use hyper_util::client::legacy::connect::{self, Connected};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

use super::allowance::{Allowance, Exceeded};
use crate::io::{Observed, Observer};

/// The most that TLS may take before it has data for its reader, such as tickets without end: more
/// than a handshake with a long chain of certificates.
const MAX_UNCHARGED: usize = 128 << 10;

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

/// A connection, as its exchanges know it.
#[derive(Clone, Debug)]
pub struct Connection(Arc<ConnectionState>);

#[derive(Debug)]
struct ConnectionState {
    allowance: Mutex<Allowance>,
    uncharged: Uncharged,
    /// Nothing can be received any more.
    ended: CancellationToken,
}

impl Connection {
    pub fn new(is_http2: bool, uncharged: Uncharged) -> Connection {
        // The handshake of TLS.
        uncharged.take();
        Connection(Arc::new(ConnectionState {
            allowance: Mutex::new(Allowance::new(is_http2)),
            uncharged,
            ended: CancellationToken::new(),
        }))
    }

    /// Returns the connection that a client describes.
    pub fn of(connected: &Connected) -> Option<Connection> {
        extra(connected)
    }

    /// Notes that the current request opened this connection.
    pub fn note_opened(&self) {
        // If the request uses another connection, the pool finishes this one outside of any
        // request: then there is nothing to note.
        let _ = OPENED.try_with(|opened| opened.replace(Some(self.clone())));
    }

    /// Whether a request that has opened `opened` is not the only one that was sent on this
    /// connection. A receiver may close an idle connection at the very moment a request is sent on
    /// it: that is not an answer, and the request is sent again.
    pub fn is_reused(&self, opened: Option<&Connection>) -> bool {
        let is_new = opened.is_some_and(|opened| Arc::ptr_eq(&self.0, &opened.0));
        !is_new || self.allowance().requests() > 1
    }

    /// Notes that nothing can be received any more.
    pub fn end(&self) {
        self.0.ended.cancel();
    }

    /// Waits until nothing can be received any more. What was received may not be processed yet.
    pub async fn ended(&self) {
        self.0.ended.cancelled().await;
    }

    /// Whether the connection was closed because the receiver had sent more than it may.
    pub fn is_exceeded(&self) -> bool {
        self.0.uncharged.is_exceeded() || self.allowance().is_exceeded()
    }

    /// Notes an interim response over HTTP/1.
    pub fn receive_interim(&self) {
        self.allowance().receive_interim();
    }

    fn allowance(&self) -> MutexGuard<'_, Allowance> {
        self.0.allowance.lock()
    }
}

/// Returns what a layer of a connection has added to its description.
fn extra<T: Clone + Send + Sync + 'static>(connected: &Connected) -> Option<T> {
    let mut extensions = Extensions::new();
    connected.get_extras(&mut extensions);
    extensions.remove()
}

/// An exchange on a connection, until it is dropped.
#[derive(Debug)]
pub struct Exchange {
    connection: Connection,
    has_head: bool,
}

impl Exchange {
    pub fn begin(connection: Connection) -> Exchange {
        connection.allowance().begin();
        Exchange {
            connection,
            has_head: false,
        }
    }

    /// Notes that the head of the response has arrived.
    pub fn receive_head(&mut self) {
        self.has_head = true;
        self.connection.allowance().receive_head();
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.connection.allowance().end(self.has_head);
    }
}

/// How many bytes have arrived that no reader was charged with.
#[derive(Clone, Debug, Default)]
pub struct Uncharged(Arc<AtomicUsize>);

impl Uncharged {
    /// Returns the number, and sets it to zero.
    pub fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }

    pub fn is_exceeded(&self) -> bool {
        self.0.load(Ordering::Relaxed) > MAX_UNCHARGED
    }
}

/// The bytes of a connection, outside TLS.
pub type Counting<T> = Observed<T, Uncharged>;

/// Counts the bytes of a connection outside TLS.
pub fn count<T>(io: T) -> Counting<T> {
    Observed {
        io,
        observer: Uncharged::default(),
    }
}

impl<T: connect::Connection> connect::Connection for Counting<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.observer.clone())
    }
}

impl Observer for Uncharged {
    fn read(&mut self, bytes: Option<&[u8]>) -> io::Result<()> {
        let count = bytes.map_or(0, <[u8]>::len);
        self.0.fetch_add(count, Ordering::Relaxed);

        if self.is_exceeded() {
            return Err(io::Error::other(Exceeded));
        }

        Ok(())
    }
}

/// The bytes of a connection, inside TLS.
pub type Metered<T> = Observed<T, Meter>;

/// Charges a connection's exchanges with what is read.
#[derive(Debug)]
pub struct Meter {
    pub connection: Connection,
    /// Whether the next bytes had to be waited for.
    has_waited: bool,
}

/// Meters a connection.
pub fn meter<T: connect::Connection>(io: T) -> Metered<T> {
    let connected = io.connected();
    let uncharged = extra(&connected).expect("the bytes of every connection are counted");
    let connection = Connection::new(connected.is_negotiated_h2(), uncharged);

    Observed {
        io,
        observer: Meter::new(connection),
    }
}

impl Meter {
    fn new(connection: Connection) -> Meter {
        Meter {
            connection,
            has_waited: false,
        }
    }
}

impl Observer for Meter {
    fn read(&mut self, bytes: Option<&[u8]>) -> io::Result<()> {
        let Some(bytes) = bytes else {
            self.has_waited = true;
            return Ok(());
        };

        if bytes.is_empty() {
            self.connection.end();
            return Ok(());
        }

        let has_waited = std::mem::take(&mut self.has_waited);
        self.connection
            .allowance()
            .read(bytes, self.connection.0.uncharged.take(), has_waited)
            .map_err(io::Error::other)
    }

    fn read_failed(&mut self) {
        self.connection.end();
    }

    fn shut_down(&mut self) {
        // The client has no more use for the connection. A request that it accepts meanwhile would
        // wait in vain.
        self.connection.end();
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.connection.end();
    }
}

impl<T: connect::Connection> connect::Connection for Metered<T> {
    /// Without what the layers below have added: the client copies all of it for each request.
    fn connected(&self) -> Connected {
        let below = self.io.connected();
        let connected = Connected::new()
            .proxy(below.is_proxied())
            .extra(self.observer.connection.clone());

        if below.is_negotiated_h2() {
            connected.negotiated_h2()
        } else {
            connected
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn metered() -> (Metered<Counting<DuplexStream>>, DuplexStream) {
        let (io, receiver) = duplex(1 << 20);
        let io = count(io);
        let connection = Connection::new(false, io.observer.clone());
        let observer = Meter::new(connection);

        (Observed { io, observer }, receiver)
    }

    #[tokio::test]
    async fn a_receiver_that_sends_too_much_is_cut_off() {
        let (mut client, mut receiver) = metered();
        let connection = client.observer.connection.clone();

        receiver.write_all(&[b'x'; 100 << 10]).await.unwrap();
        let error = client.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert!(connection.is_exceeded(), "{error}");
    }

    #[test]
    fn a_connection_is_new_to_the_request_that_opened_it_while_no_other_uses_it() {
        let connection = Connection::new(true, Uncharged::default());
        let other = Connection::new(true, Uncharged::default());
        let _first = Exchange::begin(connection.clone());

        assert!(!connection.is_reused(Some(&connection)));
        assert!(connection.is_reused(None) && connection.is_reused(Some(&other)));
        let _second = Exchange::begin(connection.clone());
        assert!(connection.is_reused(Some(&connection)));
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_noted_however_it_ends() {
        let (mut client, receiver) = metered();
        drop(receiver);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        client.observer.connection.ended().await;

        let (mut client, _receiver) = metered();
        client.shutdown().await.unwrap();
        client.observer.connection.ended().await;

        let (client, _receiver) = metered();
        let connection = client.observer.connection.clone();
        drop(client);
        connection.ended().await;
    }

    #[tokio::test]
    async fn bytes_that_no_reader_is_charged_with_are_bounded() {
        const PART: usize = MAX_UNCHARGED / 2;
        let (io, mut receiver) = duplex(8 * PART);

        receiver.write_all(&[0; 8 * PART]).await.unwrap();
        let mut counted = count(io);
        let mut part = [0; PART];

        for _ in 0..4 {
            counted.read_exact(&mut part).await.unwrap();
            assert_eq!(counted.observer.take(), PART);
        }

        counted.read_exact(&mut part).await.unwrap();
        counted.read_exact(&mut part).await.unwrap();

        let error = counted.read(&mut part).await.unwrap_err();
        assert!(
            error.get_ref().is_some_and(|inner| inner.is::<Exceeded>()),
            "{error}"
        );
        assert!(counted.observer.is_exceeded());
    }
}
