//! An HTTP proxy that opens tunnels (`CONNECT`) and records the requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[derive(Default)]
struct Seen {
    /// The heads of all requests, line by line.
    requests: Vec<Vec<String>>,
    /// The status to respond with instead of opening a tunnel.
    refusal: Option<u16>,
}

/// A running proxy. Dropping it closes its tunnels.
pub struct TunnelProxy {
    pub address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    server: JoinHandle<()>,
}

impl TunnelProxy {
    pub async fn start() -> TunnelProxy {
        TunnelProxy::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    pub async fn start_at(address: SocketAddr) -> TunnelProxy {
        let listener = TcpListener::bind(address)
            .await
            .expect("a port for the proxy");
        let address = listener.local_addr().expect("it listens");
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = seen.clone();

        let server = tokio::spawn(async move {
            // Dropped with the server, and the tunnels with them.
            let mut tunnels = tokio::task::JoinSet::new();

            while let Ok((stream, _)) = listener.accept().await {
                tunnels.spawn(serve(stream, shared.clone()));
            }
        });

        TunnelProxy {
            address,
            seen,
            server,
        }
    }

    /// Responds with this status from now on, instead of opening tunnels.
    pub fn refuse(&self, status: u16) {
        self.seen
            .lock()
            .expect("nobody panics with this lock")
            .refusal = Some(status);
    }

    /// Returns the heads of all requests since the last call.
    pub fn take_requests(&self) -> Vec<Vec<String>> {
        std::mem::take(
            &mut self
                .seen
                .lock()
                .expect("nobody panics with this lock")
                .requests,
        )
    }
}

impl Drop for TunnelProxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(stream: TcpStream, seen: Arc<Mutex<Seen>>) {
    let mut stream = BufReader::new(stream);
    let mut lines: Vec<String> = Vec::new();

    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }

        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }

    let target = lines[0].split(' ').nth(1).unwrap_or_default().to_owned();
    let refusal = {
        let mut seen = seen.lock().expect("nobody panics with this lock");
        seen.requests.push(lines);
        seen.refusal
    };

    let status = match refusal {
        Some(status) => status,
        None => match TcpStream::connect(target).await {
            Ok(mut receiver) => {
                let _ = stream
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await;
                let _ = copy_bidirectional(&mut stream, &mut receiver).await;
                return;
            }
            Err(_) => 502,
        },
    };

    let _ = stream
        .write_all(format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n").as_bytes())
        .await;
}
