//! `walhook openapi`: prints the OpenAPI document of the management API.

use super::{CommandResult, print_text};
use crate::api::openapi_document;
use crate::config::Config;

/// Uses the default base path: the document describes the build, not an installation.
pub fn execute() -> CommandResult {
    print_text(&openapi_document(&Config::default().http.base_path))
}
