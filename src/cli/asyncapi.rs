//! `walhook asyncapi`: prints the AsyncAPI document of the requests that receivers get.

use std::process::ExitCode;

use super::CommandResult;
use crate::api::asyncapi_document;

pub fn execute() -> CommandResult {
    print!("{}", asyncapi_document());
    Ok(ExitCode::SUCCESS)
}
