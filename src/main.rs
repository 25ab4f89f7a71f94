use std::process::ExitCode;

use clap::Parser;
use walhook::cli::Cli;

/// Returns memory to the system after a burst, and needs a fifth less CPU time than the system's
/// allocator. How much memory it keeps is set at build time, in `.cargo/config.toml`.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    Cli::parse().execute().await
}
