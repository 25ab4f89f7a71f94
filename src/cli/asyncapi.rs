//! `walhook asyncapi`: prints the AsyncAPI document of the requests that receivers get.

use super::{CommandResult, print_text};
use crate::api::asyncapi_document;

pub fn execute() -> CommandResult {
    print_text(&asyncapi_document())
}
