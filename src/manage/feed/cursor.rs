//! Cursors of the feed: the number of an event, as eight bytes in base64.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::manage::page::MalformedCursor;

/// A place in the feed: after the event with this number, and before all later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FeedPosition(pub(in crate::manage) i64);

impl FeedPosition {
    /// Before the oldest event that is kept.
    pub const EARLIEST: FeedPosition = FeedPosition(0);
}

impl fmt::Display for FeedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0.to_be_bytes()))
    }
}

impl FromStr for FeedPosition {
    type Err = MalformedCursor;

    fn from_str(text: &str) -> Result<FeedPosition, MalformedCursor> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| MalformedCursor)?;
        let number = bytes.try_into().map(i64::from_be_bytes);

        match number {
            Ok(number @ 0..) => Ok(FeedPosition(number)),
            _ => Err(MalformedCursor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_a_number_that_is_not_negative() {
        for number in [0, 1, 41, i64::MAX] {
            let text = FeedPosition(number).to_string();
            assert_eq!((text.len(), text.parse()), (11, Ok(FeedPosition(number))));
        }

        for text in ["", "x", "earliest", "_________________", "AAAAAAAAAAAAAAAA"] {
            assert_eq!(text.parse::<FeedPosition>(), Err(MalformedCursor), "{text}");
        }
    }
}
