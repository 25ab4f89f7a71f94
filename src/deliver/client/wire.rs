//! Counts the bytes of a connection outside TLS, so that what TLS takes for itself is bounded too,
//! for example tickets without end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::allowance::Exceeded;

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
#[derive(Debug)]
pub struct Wire<T> {
    io: T,
    uncharged: Uncharged,
}

impl<T> Wire<T> {
    pub fn new(io: T) -> Wire<T> {
        Wire {
            io,
            uncharged: Uncharged::default(),
        }
    }

    #[cfg(test)]
    pub fn uncharged(&self) -> Uncharged {
        self.uncharged.clone()
    }
}

impl<T: Connection> Connection for Wire<T> {
    fn connected(&self) -> Connected {
        self.io.connected().extra(self.uncharged.clone())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Wire<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;

        self.uncharged
            .0
            .fetch_add(buf.filled().len() - filled, Ordering::Relaxed);

        if self.uncharged.is_exceeded() {
            buf.set_filled(filled);
            return Poll::Ready(Err(io::Error::other(Exceeded)));
        }

        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Wire<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
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
        let mut wire = Wire::new(io);
        let mut part = [0; PART];

        for _ in 0..4 {
            wire.read_exact(&mut part).await.unwrap();
            assert_eq!(wire.uncharged().take(), PART);
        }

        wire.read_exact(&mut part).await.unwrap();
        wire.read_exact(&mut part).await.unwrap();

        let error = wire.read(&mut part).await.unwrap_err();
        assert!(
            error.get_ref().is_some_and(|inner| inner.is::<Exceeded>()),
            "{error}"
        );
        assert!(wire.uncharged().is_exceeded());
    }
}
