//! `walhook config`: prints the effective configuration.

use std::process::ExitCode;

use super::CommandResult;
use crate::config::Config;

pub fn execute(config: Config) -> CommandResult {
    print!("{}", toml::to_string(&config)?);
    Ok(ExitCode::SUCCESS)
}
