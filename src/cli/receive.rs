//! TBD

use super::CommandResult;

#[derive(Debug, clap::Args)]
pub struct Arguments {}

pub async fn execute(_arguments: Arguments) -> CommandResult {
    anyhow::bail!("not there yet")
}
