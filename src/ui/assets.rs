//! Stylesheet, script and icon: compiled into the binary, compressed once, under names that contain
//! a hash of their content.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use sha2::{Digest, Sha256};

use super::error::PageError;
use crate::http::Document;

pub const PATH: &str = "/ui/assets/";

pub struct Asset {
    pub path: String,
    document: Document,
}

impl Asset {
    fn new(
        stem: &str,
        extension: &str,
        content: &'static str,
        content_type: &'static str,
    ) -> Asset {
        let hash = hex::encode(&Sha256::digest(content)[..8]);
        Asset {
            path: format!("{PATH}{stem}-{hash}.{extension}"),
            document: Document::new(content_type, content),
        }
    }
}

macro_rules! asset {
    ($stem:literal, $extension:literal, $content_type:literal, $($file:literal),+) => {
        LazyLock::new(|| {
            let content = concat!($(include_str!(concat!("../../assets/", $file))),+);
            Asset::new($stem, $extension, content, $content_type)
        })
    };
}

pub static STYLE: LazyLock<Asset> = asset!(
    "ui",
    "css",
    "text/css; charset=utf-8",
    "palette.css",
    "ui.css"
);
pub static SCRIPT: LazyLock<Asset> = asset!("ui", "js", "text/javascript; charset=utf-8", "ui.js");
pub static ICON: LazyLock<Asset> = asset!("icon", "svg", "image/svg+xml", "icon.svg");

pub async fn serve(Path(name): Path<String>, request: HeaderMap) -> Result<Response, PageError> {
    let assets: [&'static Asset; 3] = [&STYLE, &SCRIPT, &ICON];
    let found = assets
        .into_iter()
        .find(|asset| asset.path.strip_prefix(PATH) == Some(&name));
    let mut response = found
        .ok_or_else(PageError::no_such_page)?
        .document
        .response(&request);

    // Another content has another name.
    response.headers_mut().insert(
        header::CACHE_CONTROL,
        HeaderValue::from_static("public, max-age=31536000, immutable"),
    );
    Ok(response)
}
