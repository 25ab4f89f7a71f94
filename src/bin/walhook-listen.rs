//! `walhook-listen`: the commands for developers of receivers, without the server.

use std::process::ExitCode;

use clap::Parser;
use walhook::cli::ReceiverCli;

#[tokio::main]
async fn main() -> ExitCode {
    ReceiverCli::parse().execute().await
}
