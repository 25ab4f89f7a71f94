//! `walhook config`: prints the effective configuration.

use super::{CommandResult, print_text};
use crate::config::Config;

pub fn execute(config: Config) -> CommandResult {
    print_text(&toml::to_string(&config)?)
}
