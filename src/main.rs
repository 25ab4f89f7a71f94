use std::process::ExitCode;

use clap::Parser;
use walhook::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    Cli::parse().execute().await
}
