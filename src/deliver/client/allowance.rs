//! How much a receiver may send on a connection, and how often it may wake the connection's reader.
//! No I/O.
//!
//! Each exchange grants a number of bytes, of which each frame and each wake-up takes some. What it
//! does not use is lost when it ends. So the cost of a receiver is in proportion to the requests
//! that it gets, whatever it sends.

/// What a receiver may send before the head of its response.
pub const HEAD_BYTES: usize = 64 << 10;
/// What it may send after that: the part of the body that is read, and what frames it.
const BODY_BYTES: usize = 80 << 10;
/// What it may send late: the response to a request that was given up, for example because of the
/// timeout.
const LATE_BYTES: usize = 16 << 10;
/// What it may send for the connection itself, for example settings and pings: nothing over HTTP/1,
/// where a part of the response may be read before the exchange is noted.
const CONNECTION_BYTES: usize = 16 << 10;
const HTTP2_CONNECTION_BYTES: usize = 128 << 10;
/// An interim response counts as so many bytes, and over HTTP/2 each head: compressed, it can be
/// far larger than its frame.
const HEAD_COST: usize = 8 << 10;
/// What every other HTTP/2 frame, and each read that had to wait, counts besides its bytes: about
/// what handling it costs.
const FRAME_COST: usize = 256;

/// The receiver has sent more than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the receiver sent more than 64 KiB, or too many interim responses, before the head of its response"
)]
pub struct Exceeded;

/// What a receiver may still send on a connection.
#[derive(Debug)]
pub struct Allowance {
    bytes: usize,
    /// All requests that were sent.
    requests: usize,
    /// The most that remains when an exchange ends: what the connection and its other exchanges
    /// were granted.
    granted: usize,
    is_exceeded: bool,
    frames: Option<Frames>,
}

impl Allowance {
    pub fn new(is_http2: bool) -> Allowance {
        let bytes = if is_http2 {
            HTTP2_CONNECTION_BYTES
        } else {
            CONNECTION_BYTES
        };

        let frames = is_http2.then(Frames::default);
        Allowance {
            bytes,
            requests: 0,
            granted: bytes,
            is_exceeded: false,
            frames,
        }
    }

    /// Notes that a request is sent.
    pub fn begin(&mut self) {
        self.requests += 1;
        self.grant(HEAD_BYTES);
    }

    /// Notes that the head of a response has arrived.
    pub fn receive_head(&mut self) {
        self.grant(BODY_BYTES);
    }

    /// Notes that an exchange has ended, with the head of a response or without.
    pub fn end(&mut self, has_head: bool) {
        self.granted -= if has_head {
            HEAD_BYTES + BODY_BYTES
        } else {
            HEAD_BYTES - LATE_BYTES
        };
        self.bytes = self.bytes.min(self.granted);
    }

    fn grant(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.granted += bytes;
    }

    /// Notes an interim response over HTTP/1, whose bytes were read.
    pub fn receive_interim(&mut self) {
        self.bytes = self.bytes.saturating_sub(HEAD_COST);
    }

    /// Notes bytes that were read, after a wait or not. `wire` is how many had to arrive for them,
    /// with what TLS adds.
    pub fn read(&mut self, bytes: &[u8], wire: usize, has_waited: bool) -> Result<(), Exceeded> {
        let wait = if has_waited { FRAME_COST } else { 0 };
        let frames = self.frames.as_mut().map_or(0, |frames| frames.cost(bytes));
        let left = self.bytes.checked_sub(wire + wait + frames);

        self.is_exceeded |= left.is_none();
        self.bytes = left.ok_or(Exceeded)?;

        Ok(())
    }

    /// Returns how many requests were sent.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Whether the receiver has sent more than it may.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }
}

/// Finds the frames in the bytes of an HTTP/2 connection.
#[derive(Debug, Default)]
struct Frames {
    header: [u8; Frames::HEADER],
    /// How much of the next frame's header has arrived.
    filled: usize,
    /// How much of the current frame's payload is still to come.
    payload: usize,
}

impl Frames {
    const HEADER: usize = 9;
    /// The type of a frame with the head of a response.
    const HEADERS: u8 = 1;

    /// Returns what the frames whose headers end in `bytes` count.
    fn cost(&mut self, mut bytes: &[u8]) -> usize {
        let mut cost = 0;

        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];

            let taken = bytes.len().min(Frames::HEADER - self.filled);
            self.header[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];

            if self.filled == Frames::HEADER {
                let [a, b, c, kind, ..] = self.header;
                self.payload = u32::from_be_bytes([0, a, b, c]) as usize;
                self.filled = 0;
                cost += if kind == Frames::HEADERS {
                    HEAD_COST
                } else {
                    FRAME_COST
                };
            }
        }

        cost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many times these bytes can be read.
    fn reads(allowance: &mut Allowance, bytes: &[u8]) -> usize {
        std::iter::from_fn(|| allowance.read(bytes, bytes.len(), false).ok())
            .take(1 << 20)
            .count()
    }

    #[test]
    fn what_an_exchange_may_use_is_bounded_and_does_not_add_up() {
        for _ in 0..2 {
            let mut allowance = Allowance::new(false);

            for _ in 0..1_000 {
                allowance.begin();
                allowance.read(b"HTTP/1.1 200 OK\r\n", 40, true).unwrap();
                allowance.receive_head();
                allowance.end(true);
            }

            allowance.begin();
            assert_eq!(
                reads(&mut allowance, &[b'x'; 1 << 10]),
                (CONNECTION_BYTES + HEAD_BYTES) >> 10
            );
        }
    }

    #[test]
    fn a_body_of_the_length_that_is_read_is_allowed_also_before_its_head_is_noted() {
        for is_http2 in [false, true] {
            let mut allowance = Allowance::new(is_http2);
            allowance.begin();
            assert!(reads(&mut allowance, &[b'x'; 1 << 10]) > 64 || !is_http2);
            allowance.receive_head();
            assert!(reads(&mut allowance, &[b'x'; 1 << 10]) > 64);
        }
    }

    #[test]
    fn few_interim_responses_are_allowed() {
        let mut allowance = Allowance::new(false);
        allowance.begin();
        (0..8).for_each(|_| allowance.receive_interim());
        assert_eq!(allowance.read(b"H", 1, true), Ok(()));
        (0..8).for_each(|_| allowance.receive_interim());
        assert_eq!(allowance.read(b"H", 1, true), Err(Exceeded));
    }

    #[test]
    fn late_responses_to_requests_that_were_given_up_are_allowed() {
        let late = [&[0, 0, 1, 1, 5, 0, 0, 0, 1, 0x88][..], &[0; 1 << 10]].concat();
        let mut allowance = Allowance::new(true);

        (0..1_000).for_each(|_| allowance.begin());
        (0..1_000).for_each(|_| allowance.end(false));
        assert!(reads(&mut allowance, &late[..10]) >= 1_000);
    }

    #[test]
    fn data_that_arrives_in_small_pieces_is_bounded() {
        let mut allowance = Allowance::new(false);
        allowance.begin();
        allowance.receive_head();

        let reads = (0..10_000).take_while(|_| allowance.read(b"x", 1, true).is_ok());
        assert!((500..700).contains(&reads.count()));
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_divided() {
        let headers = [&[0, 0, 3, 1, 4, 0, 0, 0, 1][..], b"abc"].concat();
        let data = [&[0, 1, 0, 0, 1, 0, 0, 0, 1][..], &[7; 256]].concat();
        let empty = [0, 0, 0, 4, 1, 0, 0, 0, 0];
        let all = [&empty[..], &headers, &data, &empty].concat();

        for length in 1..all.len() {
            let mut frames = Frames::default();
            let cost: usize = all.chunks(length).map(|part| frames.cost(part)).sum();
            assert_eq!(cost, HEAD_COST + 3 * FRAME_COST, "{length}");
        }
    }
}
