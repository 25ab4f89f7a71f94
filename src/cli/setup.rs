//! TBD

use super::CommandResult;
use crate::config::Config;

#[derive(Debug, clap::Args)]
pub struct Arguments {}

pub async fn execute(_arguments: Arguments, _config: Config) -> CommandResult {
    anyhow::bail!("not there yet")
}
