//! How the web UI and the API reference look: name, logo, accent colour and colour scheme.

use std::fmt::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use crate::config::{Color, ColorScheme, Config};

/// The least contrast of text according to WCAG AA.
const MIN_CONTRAST: f64 = 4.5;
/// `--bad-back`: the darkest background of text in light mode.
const LIGHT: Color = Color([0xfc, 0xeb, 0xe9]);
/// `--sunken`: the lightest background of text in dark mode.
const DARK: Color = Color([0x24, 0x27, 0x2d]);
const BLACK: Color = Color([0; 3]);
const WHITE: Color = Color([255; 3]);

/// What pages show of the platform's brand.
#[derive(Debug)]
pub struct Brand {
    pub name: String,
    /// The logo's URL.
    pub logo: Option<String>,
    /// The content of the element `meta` named `color-scheme`.
    pub color_scheme: &'static str,
    /// Rules that follow those of the stylesheet. Empty if nothing differs.
    pub style: String,
}

impl Brand {
    pub fn new(config: &Config) -> Brand {
        let brand = config.ui.brand.clone().unwrap_or_default();
        let color_scheme = match brand.color_scheme.unwrap_or_default() {
            ColorScheme::Auto => "light dark",
            ColorScheme::Light => "light",
            ColorScheme::Dark => "dark",
        };

        let mut style = String::new();

        if brand.color_scheme.is_some() {
            write!(style, ":root{{color-scheme:{color_scheme}}}").expect("memory can be written");
        }

        if let Some(accent) = brand.accent {
            let light = String::from(readable(accent, LIGHT, BLACK));
            let dark = String::from(readable(accent, DARK, WHITE));
            write!(style, ":root{{--accent:light-dark({light},{dark})}}")
                .expect("memory can be written");
        }

        Brand {
            name: brand.name.unwrap_or_else(|| config.service.name.clone()),
            logo: brand.logo,
            color_scheme,
            style,
        }
    }
}

/// Returns the source by which a content security policy allows a style in a page.
pub fn style_source(style: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(style)))
}

/// Mixes a colour with as little of `with` as text in it needs on the background.
fn readable(color: Color, background: Color, with: Color) -> Color {
    let mixed = |share: u16| {
        let channel = |index: usize| {
            let from = u16::from(color.0[index]);
            let to = u16::from(with.0[index]);
            ((from * (255 - share) + to * share) / 255) as u8
        };
        Color([channel(0), channel(1), channel(2)])
    };

    (0..=255)
        .map(mixed)
        .find(|mixed| contrast(*mixed, background) >= MIN_CONTRAST)
        .unwrap_or(with)
}

/// The contrast of two colours, from 1 to 21, as WCAG 2 defines it.
fn contrast(one: Color, other: Color) -> f64 {
    let one = luminance(one) + 0.05;
    let other = luminance(other) + 0.05;
    one.max(other) / one.min(other)
}

fn luminance(Color(channels): Color) -> f64 {
    let [red, green, blue] = channels.map(|channel| {
        let share = f64::from(channel) / 255.0;
        if share <= 0.04045 {
            share / 12.92
        } else {
            ((share + 0.055) / 1.055).powf(2.4)
        }
    });

    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_accent_becomes_readable() {
        let steps = || (0..=255).step_by(51);
        let colors = steps().flat_map(|red| {
            steps().flat_map(move |green| steps().map(move |blue| [red, green, blue]))
        });

        for color in colors.map(Color) {
            for (background, with) in [(LIGHT, BLACK), (DARK, WHITE)] {
                let readable = readable(color, background, with);
                assert!(contrast(readable, background) >= MIN_CONTRAST, "{color:?}");

                if contrast(color, background) >= MIN_CONTRAST {
                    assert_eq!(readable, color);
                }
            }
        }
    }

    #[test]
    fn contrast_is_that_of_wcag() {
        assert!((contrast(BLACK, WHITE) - 21.0).abs() < 1e-9);
        let gray = Color([0x76; 3]);
        assert!((contrast(gray, WHITE) - 4.54).abs() < 0.01);
    }
}
