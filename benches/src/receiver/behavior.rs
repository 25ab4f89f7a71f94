//! How the receiver responds: the path of the request decides.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::request::number_after;

pub const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
/// Followed, it would be another request.
const REDIRECT: &[u8] = b"HTTP/1.1 302 Found\r\nLocation: /answer\r\nContent-Length: 0\r\n\r\n";
/// Takes 4 s byte by byte: the status arrives within the sender's timeout of 10 s, and the end of
/// the body does not.
const DRIP: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
const DRIP_BODY: usize = 1_000;
const BYTE_EVERY: Duration = Duration::from_millis(100);
const STALL: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n";
const INTERIM: &[u8] = b"HTTP/1.1 102 Processing\r\n\r\n";
/// The start of a field that has no end.
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nX-Field: ";
/// A little less than the sender takes before the end of a head.
const HEAD_BYTES: usize = 60 << 10;
const LARGE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n";
const LARGE_BODY: usize = 100_000_000;
/// Every large response is written from this one buffer.
static CHUNK: [u8; 64 << 10] = [b'x'; 64 << 10];

/// The receivers whose requests are counted for each webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Responds with 200 immediately.
    Answer,
    /// Never responds.
    Hang,
    /// Responds with 200, one byte at a time.
    Drip,
    /// Resets the connection.
    Reset,
    Redirect,
    /// Responds with 200 and a body of 100 MB.
    Large,
    /// Responds with 200 and the length of a body that never comes.
    Stall,
    /// Sends interim responses without end.
    Interim,
    /// Sends a large part of the head of its response, and hangs.
    Head,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Answer,
        Kind::Hang,
        Kind::Drip,
        Kind::Reset,
        Kind::Redirect,
        Kind::Large,
        Kind::Stall,
        Kind::Interim,
        Kind::Head,
    ];
    pub const MISBEHAVING: [Kind; 6] = [
        Kind::Hang,
        Kind::Drip,
        Kind::Reset,
        Kind::Redirect,
        Kind::Large,
        Kind::Stall,
    ];
    /// Those that hang, or send without end before the head of a response is complete.
    pub const ATTACKING: [Kind; 3] = [Kind::Hang, Kind::Interim, Kind::Head];

    pub const fn path(self) -> &'static str {
        match self {
            Kind::Answer => "answer",
            Kind::Hang => "hang",
            Kind::Drip => "drip",
            Kind::Reset => "reset",
            Kind::Redirect => "redirect",
            Kind::Large => "large",
            Kind::Stall => "stall",
            Kind::Interim => "interim",
            Kind::Head => "head",
        }
    }

    /// What the receivers do, in names of figures.
    pub const fn verb(self) -> &'static str {
        match self {
            Kind::Large => "answer 100 MB",
            Kind::Stall => "hang after a 200",
            Kind::Interim => "send interim responses",
            Kind::Head => "hang in the head",
            other => other.path(),
        }
    }

    /// Whether its requests last until the sender's timeout.
    pub const fn is_slow(self) -> bool {
        matches!(self, Kind::Hang | Kind::Drip | Kind::Stall | Kind::Head)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// Responds with 200 immediately. Not counted for each webhook, which costs time: for measures
    /// of throughput.
    Prompt,
    Slow(Duration),
    Of(Kind),
}

impl Behavior {
    pub fn of(path: &[u8]) -> Behavior {
        if let Some(milliseconds) = number_after(path, b"/slow/") {
            return Behavior::Slow(Duration::from_millis(milliseconds));
        }

        let name = path.strip_prefix(b"/").unwrap_or_default();
        let kind = Kind::ALL
            .into_iter()
            .find(|kind| kind.path().as_bytes() == name);
        kind.map_or(Behavior::Prompt, Behavior::Of)
    }

    /// Whether the sender gets an ordinary response.
    pub fn is_ordinary(self) -> bool {
        matches!(
            self,
            Behavior::Prompt | Behavior::Slow(_) | Behavior::Of(Kind::Answer)
        )
    }

    /// Responds. Returns whether another request may follow on the same connection.
    pub async fn respond(self, stream: &mut TcpStream) -> std::io::Result<bool> {
        match self {
            Behavior::Prompt | Behavior::Of(Kind::Answer) => stream.write_all(ANSWER).await?,
            Behavior::Slow(wait) => {
                tokio::time::sleep(wait).await;
                stream.write_all(ANSWER).await?;
            }
            Behavior::Of(Kind::Redirect) => stream.write_all(REDIRECT).await?,
            Behavior::Of(Kind::Large) => large(stream).await?,
            Behavior::Of(Kind::Hang) => return until_closed(stream).await,
            Behavior::Of(Kind::Stall) => {
                stream.write_all(STALL).await?;
                return until_closed(stream).await;
            }
            // Until the sender closes the connection.
            Behavior::Of(Kind::Interim) => loop {
                stream.write_all(&INTERIM.repeat(64)).await?;
            },
            Behavior::Of(Kind::Head) => {
                stream.write_all(HEAD).await?;
                stream.write_all(&CHUNK[..HEAD_BYTES]).await?;
                return until_closed(stream).await;
            }
            Behavior::Of(Kind::Drip) => return drip(stream).await,
            Behavior::Of(Kind::Reset) => {
                // Closing it then sends a reset.
                stream.set_zero_linger()?;
                return Ok(false);
            }
        }

        Ok(true)
    }
}

async fn until_closed(stream: &mut TcpStream) -> std::io::Result<bool> {
    while stream.read(&mut [0; 1 << 10]).await? > 0 {}
    Ok(false)
}

/// Fails as soon as the sender closes the connection, which it does when it has read enough.
async fn large(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(LARGE).await?;
    let mut left = LARGE_BODY;
    while left > 0 {
        let length = left.min(CHUNK.len());
        stream.write_all(&CHUNK[..length]).await?;
        left -= length;
    }

    Ok(())
}

async fn drip(stream: &mut TcpStream) -> std::io::Result<bool> {
    let body = std::iter::repeat_n(&b'.', DRIP_BODY);
    for byte in DRIP.iter().chain(body) {
        stream.write_u8(*byte).await?;
        tokio::time::sleep(BYTE_EVERY).await;
    }

    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_decides() {
        assert_eq!(Behavior::of(b"/"), Behavior::Prompt);
        assert_eq!(
            Behavior::of(b"/slow/100"),
            Behavior::Slow(Duration::from_millis(100))
        );

        for kind in Kind::ALL {
            let behavior = Behavior::of(format!("/{}", kind.path()).as_bytes());
            assert_eq!(behavior, Behavior::Of(kind));
            assert_eq!(behavior.is_ordinary(), kind == Kind::Answer);
        }
    }

    #[test]
    fn the_announced_lengths_are_those_of_the_bodies() {
        let announced = |head: &[u8]| number_after(head, b"Content-Length");
        assert_eq!(announced(LARGE), Some(LARGE_BODY as u64));
        assert_eq!(announced(DRIP), Some(DRIP_BODY as u64));

        let status_after = BYTE_EVERY * DRIP.len() as u32;
        assert!(
            status_after < Duration::from_secs(10),
            "within the sender's timeout"
        );
        assert!(
            status_after + BYTE_EVERY * DRIP_BODY as u32 > Duration::from_secs(10),
            "the body is not"
        );
    }
}
