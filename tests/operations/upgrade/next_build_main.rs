//! The next build of `walhook`: the same library with two more migrations. The upgrade test runs
//! it.

mod migrations;

use std::process::ExitCode;

use clap::Parser;
use walhook::cli::Cli;
use walhook::store::migrate;

#[tokio::main]
async fn main() -> ExitCode {
    migrate::add_later(&migrations::LATER);
    Cli::parse().execute().await
}
