//! The section `ui`: which pages may embed the web UI, and how it looks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use url::Url;

use super::Config;
use super::access::{check_origin, is_https_or_loopback};

section! { Ui:
    /// Origins whose pages may show the web UI in a frame, such as `https://app.example`. Empty: no
    /// page may. Needs `http.public_url`.
    frame_ancestors: Vec<String>,
    /// How the web UI looks.
    brand: Option<Brand>,
}

/// How the web UI looks.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Brand {
    /// Name in the page's head and title. Default: `service.name`.
    #[schemars(example = &"Example Distribution")]
    pub name: Option<String>,
    /// URL of the logo beside the name, which is also the icon of the page. It must begin with
    /// `https://`. Browsers load it from there.
    #[schemars(example = &"https://cdn.platform.example/logo.svg")]
    pub logo: Option<String>,
    /// Colour of links and main buttons. It is darkened on light pages and lightened on dark ones
    /// until its contrast is 4.5 to 1, as WCAG AA requires.
    #[schemars(example = &"#0a7d55")]
    pub accent: Option<Color>,
    /// `light`, `dark` or `auto`, which is the default: as the browser prefers.
    #[schemars(example = &"light")]
    pub color_scheme: Option<ColorScheme>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ColorScheme {
    #[default]
    Auto,
    Light,
    Dark,
}

/// A colour: red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, with = "String")]
pub struct Color(pub [u8; 3]);

impl TryFrom<String> for Color {
    type Error = String;

    fn try_from(text: String) -> Result<Color, String> {
        let mut channels = [0; 3];
        let is_color = text
            .strip_prefix('#')
            .is_some_and(|digits| hex::decode_to_slice(digits, &mut channels).is_ok());

        if is_color {
            Ok(Color(channels))
        } else {
            Err(format!("`{text}` is not a colour like `#0a7d55`"))
        }
    }
}

impl From<Color> for String {
    fn from(Color(channels): Color) -> String {
        format!("#{}", hex::encode(channels))
    }
}

impl Ui {
    /// The sources of `frame-ancestors` in a content security policy.
    pub fn ancestors(&self) -> String {
        if self.frame_ancestors.is_empty() {
            "'none'".to_owned()
        } else {
            self.frame_ancestors.join(" ")
        }
    }
}

/// Validates the settings. The error names the setting and what it must be.
pub(super) fn check(config: &Config) -> Result<(), String> {
    let Ui {
        frame_ancestors,
        brand,
    } = &config.ui;

    for origin in frame_ancestors {
        check_origin("ui.frame_ancestors", origin)?;

        if !is_https_or_loopback(origin) {
            return Err(format!(
                "ui.frame_ancestors: `{origin}` must begin with https://: anybody could change a page without TLS"
            ));
        }
    }

    let public_url = config.http.public_url.as_deref();
    if !frame_ancestors.is_empty() && !public_url.is_some_and(is_https_or_loopback) {
        return Err(
            "ui.frame_ancestors: set http.public_url to the https origin of the web UI: \
             browsers keep no cookie of a frame without TLS, except on loopback"
                .to_owned(),
        );
    }

    let Some(Brand { name, logo, .. }) = brand else {
        return Ok(());
    };

    if name.as_deref().is_some_and(|name| name.trim().is_empty()) {
        return Err("ui.brand.name must not be empty: remove it to use service.name".to_owned());
    }

    match logo.as_deref().map(Url::parse) {
        Some(Ok(url)) if is_https_or_loopback(url.as_str()) => {
            check_origin("ui.brand.logo", &url.origin().ascii_serialization())
        }
        Some(_) => Err(
            "ui.brand.logo must begin with https://: other images are not shown on a page with TLS"
                .to_owned(),
        ),
        None => Ok(()),
    }
}
