//! `walhook check`: every precondition on a line of its own.

use std::process::ExitCode;

use super::CommandResult;
use crate::capture::check::{Verdict, check};
use crate::config::Config;

#[derive(Debug, clap::Args)]
pub struct Arguments {}

pub async fn execute(_arguments: Arguments, config: Config) -> CommandResult {
    let lines = check(&config).await;
    for line in &lines {
        println!("{line}");
    }
    let failed = lines.iter().any(|line| line.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
