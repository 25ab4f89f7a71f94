//! Receivers that violate the protocol or exhaust resources.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How a receiver misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misdeed {
    /// Resets the connection after the request.
    Reset,
    /// Responds with success, then sends the body byte by byte, without end.
    Trickle,
    /// Responds with success, then sends an endless body as fast as it is read.
    Gigabytes,
    /// Sends an endless header.
    EndlessHead,
    /// Sends interim responses without end.
    Interim,
    /// Speaks another protocol.
    Greeting,
    /// Never responds.
    Silence,
}

/// A misbehaving receiver. Dropping it closes its connections.
pub struct Hostile {
    address: SocketAddr,
    /// Approximate number of bytes that were read from it.
    pub sent: Arc<AtomicU64>,
    server: JoinHandle<()>,
}

impl Hostile {
    pub async fn start(misdeed: Misdeed) -> Hostile {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it listens");
        let sent = Arc::<AtomicU64>::default();
        let count = sent.clone();

        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();

            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(misbehave(stream, misdeed, count.clone()));
                while connections.try_join_next().is_some() {}
            }
        });

        Hostile {
            address,
            sent,
            server,
        }
    }

    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}/", self.address)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn misbehave(mut stream: TcpStream, misdeed: Misdeed, sent: Arc<AtomicU64>) {
    let (head, more, pause): (&[u8], &[u8], Duration) = match misdeed {
        Misdeed::Reset => {
            // Closing a socket with unread data resets the connection.
            let _ = stream.readable().await;
            return;
        }
        Misdeed::Greeting => (b"220 mail.example ESMTP\r\n", b"", Duration::ZERO),
        Misdeed::Silence => (b"", b"", Duration::ZERO),
        Misdeed::Trickle => (
            b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
            b".",
            Duration::from_millis(20),
        ),
        Misdeed::Gigabytes => (
            b"HTTP/1.1 200 OK\r\nContent-Length: 8589934592\r\n\r\n",
            &[b'x'; 16 << 10],
            Duration::ZERO,
        ),
        Misdeed::EndlessHead => (
            b"HTTP/1.1 200 OK\r\nX-Long: ",
            &[b'x'; 16 << 10],
            Duration::ZERO,
        ),
        Misdeed::Interim => (b"", b"HTTP/1.1 102 Processing\r\n\r\n", Duration::ZERO),
    };

    // Reads the request, or the start of a TLS handshake.
    let _ = stream.read(&mut [0; 16 << 10]).await;
    let _ = stream.write_all(head).await;

    while !more.is_empty() && stream.write_all(more).await.is_ok() {
        sent.fetch_add(more.len() as u64, Ordering::Relaxed);
        tokio::time::sleep(pause).await;
    }

    if more.is_empty() {
        // Until the other end closes the connection.
        while stream
            .read(&mut [0; 4 << 10])
            .await
            .is_ok_and(|bytes| bytes > 0)
        {}
    }
}
