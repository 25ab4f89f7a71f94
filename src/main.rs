use std::process::ExitCode;

use clap::Parser;
use walhook::cli::Cli;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    walhook::telemetry::start();
    cli.execute().await
}
