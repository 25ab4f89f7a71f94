//! `walhook config`: what the settings come to.

use std::process::ExitCode;

use super::CommandResult;
use crate::config::Config;

pub fn execute(config: Config) -> CommandResult {
    print!("{}", toml::to_string(&config)?);
    Ok(ExitCode::SUCCESS)
}
