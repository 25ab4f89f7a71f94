//! `walhook openapi`: the management API's document.

use std::process::ExitCode;

use super::CommandResult;
use crate::api::openapi_document;
use crate::config::Config;

/// With the default base path: the document describes the build, not one installation.
pub fn execute() -> CommandResult {
    print!("{}", openapi_document(&Config::default().http.base_path));
    Ok(ExitCode::SUCCESS)
}
