//! Listeners that answer no connection.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::eventually;

/// Returns a listener that never accepts and whose backlog is full, so that the kernel answers no
/// further connection while the returned values live.
pub async fn full_listener(address: SocketAddr) -> (TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(address).unwrap();

    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();

    // A backlog of 1 holds two connections.
    let mut held = Vec::new();

    for _ in 0..2 {
        held.push(TcpStream::connect(address).await.unwrap());
    }

    // The client's side is connected before the server's side has joined the backlog.
    eventually("the backlog to be full", async || {
        (backlog(address.port()) == 2).then_some(())
    })
    .await;
    (listener, held)
}

/// Returns how many connections wait to be accepted at a port: the receive queue of its listening
/// socket.
fn backlog(port: u16) -> usize {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listening = format!(":{port:04X} 00000000:0000 0A ");
    let queues = |line: &str| line.split_whitespace().nth(4).map(str::to_owned);
    let waiting = |line: &str| usize::from_str_radix(queues(line)?.split(':').nth(1)?, 16).ok();

    sockets
        .lines()
        .filter(|line| line.contains(&listening))
        .filter_map(waiting)
        .sum()
}
