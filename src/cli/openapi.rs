//! TBD

use super::CommandResult;

pub fn execute() -> CommandResult {
    anyhow::bail!("not there yet")
}
