//! Cursors of the feed: the number of an event, encrypted, so that a cursor does not show how many
//! events all users have.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use uuid::Uuid;

use crate::domain::event::UserId;
use crate::manage::page::MalformedCursor;

/// A place in the feed: after the event with this number, and before all later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub(in crate::manage) i64);

impl Position {
    /// Before the oldest event that is kept.
    pub const EARLIEST: Position = Position(0);
}

/// Formats and parses the cursors of one user.
///
/// A cursor is a tag and the masked number, eight bytes each. The tag authenticates the user and
/// the number; the mask is derived from the tag. So the same place always has the same cursor, and
/// nobody can build one.
#[derive(Clone)]
pub struct Cursors {
    key: Uuid,
    user: UserId,
}

impl Cursors {
    pub(super) fn new(key: Uuid, user: UserId) -> Cursors {
        Cursors { key, user }
    }

    pub fn format(&self, Position(number): Position) -> String {
        let number = number.to_be_bytes();
        let tag = self.tag(number);
        URL_SAFE_NO_PAD.encode([tag, xor(number, self.mask(tag))].concat())
    }

    pub fn parse(&self, text: &str) -> Result<Position, MalformedCursor> {
        let bytes: Option<[u8; 16]> = URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| bytes.try_into().ok());
        let bytes = u128::from_be_bytes(bytes.ok_or(MalformedCursor)?);
        let tag = ((bytes >> 64) as u64).to_be_bytes();
        let masked = (bytes as u64).to_be_bytes();
        let number = xor(masked, self.mask(tag));

        match self.tag(number) == tag {
            true => Ok(Position(i64::from_be_bytes(number))),
            false => Err(MalformedCursor),
        }
    }

    fn tag(&self, number: [u8; 8]) -> [u8; 8] {
        self.mac(b"tag", &[&number, self.user.0.as_bytes()])
    }

    fn mask(&self, tag: [u8; 8]) -> [u8; 8] {
        self.mac(b"mask", &[&tag])
    }

    /// The parts before the last have a fixed length, so that no two lists of parts are the same
    /// text.
    fn mac(&self, purpose: &[u8], parts: &[&[u8]]) -> [u8; 8] {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_bytes())
            .expect("HMAC takes keys of any length");
        mac.update(purpose);
        parts.iter().for_each(|part| mac.update(part));

        mac.finalize()
            .into_bytes()
            .first_chunk()
            .copied()
            .expect("a digest has 32 bytes")
    }
}

fn xor(one: [u8; 8], other: [u8; 8]) -> [u8; 8] {
    (u64::from_be_bytes(one) ^ u64::from_be_bytes(other)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_accepted_from_its_user_only_and_cannot_be_changed() {
        let cursors = |key, user: &str| Cursors::new(Uuid::from_u128(key), UserId(user.into()));
        let own = cursors(7, "1");

        for number in [0, 1, 41, i64::MAX] {
            let text = own.format(Position(number));
            assert_eq!(text.len(), 22);
            assert_eq!(own.parse(&text), Ok(Position(number)));
            assert_eq!(
                own.format(Position(number)),
                text,
                "the same place has the same cursor"
            );
            assert_eq!(cursors(7, "2").parse(&text), Err(MalformedCursor));
            assert_eq!(cursors(8, "1").parse(&text), Err(MalformedCursor));

            let mut bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
            for at in 0..bytes.len() {
                bytes[at] ^= 1;
                assert_eq!(
                    own.parse(&URL_SAFE_NO_PAD.encode(&bytes)),
                    Err(MalformedCursor),
                    "byte {at}"
                );
                bytes[at] ^= 1;
            }
        }

        for text in [
            "",
            "x",
            "earliest",
            "AAAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAAAAAA",
        ] {
            assert_eq!(own.parse(text), Err(MalformedCursor), "{text}");
        }
    }
}
