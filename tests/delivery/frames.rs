//! Frames of HTTP/2 for receivers that no HTTP library would be, and how they find requests among
//! those of the client.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// What a client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Empty settings.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// A ping with eight zero bytes.
pub const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The head of an interim response on the first stream: the status 103 as a literal.
pub const INTERIM: &[u8] = &[0, 0, 5, 1, 4, 0, 0, 0, 1, 8, 3, b'1', b'0', b'3'];

const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Returns a frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns a response with the status 200 and no body, of which the head is the entry 8 of the
/// static table.
pub fn ok(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &[0x88])
}

/// Returns the refusal of a request that was not processed.
pub fn reset(stream: u32, reason: u32) -> Vec<u8> {
    frame(3, 0, stream, &reason.to_be_bytes())
}

/// Returns the notice that streams after `last` are not processed.
pub fn go_away(last: u32, reason: u32) -> Vec<u8> {
    frame(
        7,
        0,
        0,
        &[last.to_be_bytes(), reason.to_be_bytes()].concat(),
    )
}

/// Begins a connection. Returns false if the client does not.
pub async fn begin(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> bool {
    let mut preface = [0; PREFACE.len()];
    stream.write_all(SETTINGS).await.is_ok()
        && stream.read_exact(&mut preface).await.is_ok()
        && preface == PREFACE
}

/// Reads frames until the end of a request. Returns its stream. `None` if the connection ends.
pub async fn next_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<u32> {
    loop {
        let mut header = [0; 9];
        stream.read_exact(&mut header).await.ok()?;

        let [a, b, c, kind, flags, id @ ..] = header;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        stream.read_exact(&mut payload).await.ok()?;

        if kind <= HEADERS && flags & END_STREAM != 0 {
            return Some(u32::from_be_bytes(id));
        }
    }
}
