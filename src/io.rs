//! A stream of bytes with an observer, which sees and may refuse what is read, and learns
//! whether the other side takes what is written.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What happens on a stream.
pub trait Observer {
    /// A read has polled the stream and got these bytes, of which there are none at the end of the
    /// stream, or `None` while it is pending. An error replaces the bytes.
    fn read(&mut self, _: Option<&[u8]>) -> io::Result<()> {
        Ok(())
    }

    /// A read has failed.
    fn read_failed(&mut self) {}

    /// Whether the stream took some of what is to be written.
    fn took(&mut self, _some: bool) {}

    /// Everything written so far was passed on.
    fn flushed(&mut self) {}

    /// The stream is being shut down.
    fn shut_down(&mut self) {}
}

#[derive(Debug)]
pub struct Observed<T, O> {
    pub io: T,
    pub observer: O,
}

impl<T: AsyncRead + Unpin, O: Observer + Unpin> AsyncRead for Observed<T, O> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Observed { io, observer } = &mut *self;
        let filled = buf.filled().len();
        let polled = Pin::new(io).poll_read(cx, buf);

        let noted = match &polled {
            Poll::Ready(Ok(())) => observer.read(Some(&buf.filled()[filled..])),
            Poll::Ready(Err(_)) => {
                observer.read_failed();
                return polled;
            }
            Poll::Pending => observer.read(None),
        };

        if let Err(error) = noted {
            buf.set_filled(filled);
            return Poll::Ready(Err(error));
        }

        polled
    }
}

impl<T: AsyncWrite + Unpin, O: Observer + Unpin> AsyncWrite for Observed<T, O> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write(cx, bytes);
        self.observer.took(polled.is_ready());
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.observer.took(polled.is_ready());
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_flush(cx);
        if polled.is_ready() {
            self.observer.flushed();
        }

        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.observer.shut_down();
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
