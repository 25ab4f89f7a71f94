//! Counts the bytes of a connection outside TLS, so that what TLS takes for itself is bounded too,
//! for example tickets without end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper_util::client::legacy::connect::{Connected, Connection};

use super::allowance::Exceeded;
use crate::io::{Observed, Observer};

/// The most that TLS may take before it has data for its reader: more than a handshake with a long
/// chain of certificates.
const MAX_UNCHARGED: usize = 128 << 10;

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

/// A connection outside TLS.
pub type Wire<T> = Observed<T, Uncharged>;

/// Counts the bytes of a connection.
pub fn count<T>(io: T) -> Wire<T> {
    Observed {
        io,
        observer: Uncharged::default(),
    }
}

impl<T: Connection> Connection for Wire<T> {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_that_no_reader_is_charged_with_are_bounded() {
        const PART: usize = MAX_UNCHARGED / 2;
        let (io, mut receiver) = duplex(8 * PART);

        receiver.write_all(&[0; 8 * PART]).await.unwrap();
        let mut wire = count(io);
        let mut part = [0; PART];

        for _ in 0..4 {
            wire.read_exact(&mut part).await.unwrap();
            assert_eq!(wire.observer.take(), PART);
        }

        wire.read_exact(&mut part).await.unwrap();
        wire.read_exact(&mut part).await.unwrap();

        let error = wire.read(&mut part).await.unwrap_err();
        assert!(
            error.get_ref().is_some_and(|inner| inner.is::<Exceeded>()),
            "{error}"
        );
        assert!(wire.observer.is_exceeded());
    }
}
