//! The start of a response's body, as it can be shown.

/// Binary data is shown up to this length.
const MAX_BINARY_BYTES: usize = 512;

/// The start of a response body.
#[derive(Debug, PartialEq, Eq)]
pub struct Excerpt {
    pub text: String,
    pub is_binary: bool,
}

impl Excerpt {
    /// Shows text with visible control characters, and anything else as hexadecimal bytes.
    pub fn new(bytes: &[u8]) -> Excerpt {
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => Some(text),
            // The excerpt may end within a character.
            Err(error) if error.error_len().is_none() => {
                std::str::from_utf8(&bytes[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };

        match text.filter(|text| !text.contains('\0')) {
            Some(text) => Excerpt {
                text: text.chars().map(visible).collect(),
                is_binary: false,
            },
            None => Excerpt {
                text: hex_dump(&bytes[..bytes.len().min(MAX_BINARY_BYTES)]),
                is_binary: true,
            },
        }
    }
}

/// Replaces control characters by their symbols. Characters that change the direction of text have
/// none.
fn visible(c: char) -> char {
    match c {
        '\n' | '\t' => c,
        '\u{0}'..='\u{1f}' => char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}'),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{7f}'..='\u{9f}' => '\u{fffd}',
        c => c,
    }
}

fn hex_dump(bytes: &[u8]) -> String {
    let pairs = |chunk: &[u8]| {
        chunk
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<Vec<_>>()
            .join(" ")
    };
    bytes.chunks(16).map(pairs).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_text_or_bytes() {
        let text = |bytes: &[u8]| Excerpt::new(bytes);
        assert_eq!(
            text(b"ok\r\n\x1b[2J"),
            Excerpt {
                text: "ok␍\n␛[2J".into(),
                is_binary: false
            }
        );

        assert_eq!(
            text("é".as_bytes().split_last().unwrap().1).text,
            "",
            "cut within a character"
        );
        assert_eq!(text("a\u{202e}b".as_bytes()).text, "a\u{fffd}b");

        assert_eq!(
            text(b"\x89PNG\0"),
            Excerpt {
                text: "89 50 4e 47 00".into(),
                is_binary: true
            }
        );
    }
}
