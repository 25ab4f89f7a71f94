//! Text that people write and others read: in lists, on pages and in the subjects of e-mails.

use std::ops::RangeInclusive;

/// The most bytes that the body of a delivery may have, whatever the settings.
pub const MAX_BODY: usize = 65_536;

pub const MAX_NAME_LENGTH: usize = 200;

/// Characters that are not seen, or that change the order in which others are seen. A text with
/// them reads differently than it is, and a name of nothing else cannot be selected in a list.
pub const HIDDEN: [RangeInclusive<char>; 21] = [
    '\0'..='\t',
    LINE_FEED..=LINE_FEED,
    '\u{b}'..='\u{1f}',
    '\u{7f}'..='\u{9f}',
    '\u{ad}'..='\u{ad}',       // soft hyphen
    '\u{34f}'..='\u{34f}',     // combining grapheme joiner
    '\u{61c}'..='\u{61c}',     // Arabic letter mark
    '\u{115f}'..='\u{1160}',   // Hangul fillers
    '\u{17b4}'..='\u{17b5}',   // Khmer inherent vowels
    '\u{180b}'..='\u{180f}',   // Mongolian selectors and separator
    '\u{200b}'..='\u{200f}',   // zero width, and marks of direction
    '\u{2028}'..='\u{202e}',   // line separators, embedded and overridden direction
    '\u{2060}'..='\u{206f}',   // word joiner, invisible operators, isolated direction
    '\u{2800}'..='\u{2800}',   // blank Braille pattern
    '\u{3164}'..='\u{3164}',   // Hangul filler
    '\u{fe00}'..='\u{fe0d}',   // variation selectors, except those for emoji
    '\u{feff}'..='\u{feff}',   // byte order mark
    '\u{ffa0}'..='\u{ffa0}',   // half-width Hangul filler
    '\u{fff0}'..='\u{fffb}',   // annotations
    '\u{1d173}'..='\u{1d17a}', // musical formatting
    '\u{e0000}'..='\u{e0fff}', // tags and further selectors
];
const LINE_FEED: char = '\n';

/// Why a text is rejected. The message is a predicate of the text: `must not be blank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextFault {
    #[error("must not be blank")]
    Blank,
    #[error("must not be longer than {0} characters")]
    TooLong(usize),
    #[error("must not contain control or invisible characters: remove U+{:04X} at position {position}", u32::from(*character))]
    Hidden {
        character: char,
        /// Counts characters, from 1.
        position: usize,
    },
}

/// Returns a name without spaces at its ends: 1 to 200 characters on one line.
pub fn name(text: &str) -> Result<&str, TextFault> {
    check(text, MAX_NAME_LENGTH, |_| false)?;

    // A selector alone is not seen either: it chooses how the character before it is drawn.
    if text
        .chars()
        .all(|c| c.is_whitespace() || ('\u{fe0e}'..='\u{fe0f}').contains(&c))
    {
        return Err(TextFault::Blank);
    }

    Ok(text.trim())
}

/// Checks a text of several lines.
pub fn check_lines(text: &str, max_length: usize) -> Result<(), TextFault> {
    check(text, max_length, |c| c == LINE_FEED)
}

/// Returns whether a character is not seen, or moves others.
pub fn is_hidden(character: char) -> bool {
    HIDDEN.iter().any(|range| range.contains(&character))
}

fn check(
    text: &str,
    max_length: usize,
    is_allowed: impl Fn(char) -> bool,
) -> Result<(), TextFault> {
    if text.chars().count() > max_length {
        return Err(TextFault::TooLong(max_length));
    }

    match (1..)
        .zip(text.chars())
        .find(|(_, c)| is_hidden(*c) && !is_allowed(*c))
    {
        Some((position, character)) => Err(TextFault::Hidden {
            character,
            position,
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_1_to_200_visible_characters() {
        assert_eq!(name("\u{a0}a b "), Ok("a b"));
        assert!(name(&"é".repeat(200)).is_ok());
        assert_eq!(name(&"é".repeat(201)), Err(TextFault::TooLong(200)));

        for blank in ["", " ", "\u{a0}\u{3000}", "\u{fe0f}", " \u{fe0e}\u{fe0f} "] {
            assert_eq!(name(blank), Err(TextFault::Blank), "{blank:?}");
        }
    }

    #[test]
    fn every_control_and_directional_character_is_hidden() {
        let controls = ('\0'..='\u{ff}').filter(|c| c.is_control());
        let directional = ['\u{61c}', '\u{200e}', '\u{200f}']
            .into_iter()
            .chain('\u{202a}'..='\u{202e}');
        for hidden in controls.chain(directional).chain('\u{2066}'..='\u{2069}') {
            let fault = TextFault::Hidden {
                character: hidden,
                position: 2,
            };
            assert_eq!(name(&format!("a{hidden}b")), Err(fault), "{hidden:?}");
        }

        let seen = "aé 語\u{301}שלום🎵❤\u{fe0f}";
        assert!(!seen.chars().any(is_hidden));
    }

    #[test]
    fn a_text_of_several_lines_has_no_other_hidden_characters() {
        assert_eq!(check_lines("a\n\nb", 4), Ok(()));
        assert_eq!(check_lines("a\n\nb", 3), Err(TextFault::TooLong(3)));

        let message = check_lines("ab\u{200b}", 4).unwrap_err().to_string();
        assert_eq!(
            message,
            "must not contain control or invisible characters: remove U+200B at position 3"
        );
        assert!(check_lines("a\r\nb", 9).is_err());
    }
}
