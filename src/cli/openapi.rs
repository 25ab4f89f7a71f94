//! `walhook openapi`: prints the OpenAPI document of the management API.

use std::process::ExitCode;

use super::CommandResult;
use crate::api::openapi_document;
use crate::config::Config;

/// Uses the default base path: the document describes the build, not an installation.
pub fn execute() -> CommandResult {
    print!("{}", openapi_document(&Config::default().http.base_path));
    Ok(ExitCode::SUCCESS)
}
