//! Stylesheet, script and icon: compiled into the binary, under names that contain a hash of their content.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::error::PageError;

pub const PATH: &str = "/ui/assets/";

pub struct Asset {
    pub path: String,
    content: &'static str,
    content_type: &'static str,
}

impl Asset {
    fn new(stem: &str, extension: &str, content: &'static str, content_type: &'static str) -> Asset {
        let hash = hex::encode(&Sha256::digest(content)[..8]);
        Asset { path: format!("{PATH}{stem}-{hash}.{extension}"), content, content_type }
    }
}

pub static STYLE: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("ui", "css", include_str!("../../assets/ui.css"), "text/css; charset=utf-8"));
pub static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("ui", "js", include_str!("../../assets/ui.js"), "text/javascript; charset=utf-8"));
pub static ICON: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("icon", "svg", include_str!("../../assets/icon.svg"), "image/svg+xml"));

pub async fn serve(Path(name): Path<String>) -> Result<Response, PageError> {
    let assets: [&'static Asset; 3] = [&STYLE, &SCRIPT, &ICON];
    let found = assets.into_iter().find(|asset| asset.path.strip_prefix(PATH) == Some(&name));
    let asset = found.ok_or_else(PageError::no_such_page)?;
    let cache = (header::CACHE_CONTROL, "public, max-age=31536000, immutable");
    Ok(([(header::CONTENT_TYPE, asset.content_type), cache], asset.content).into_response())
}
