//! The command line: one file per subcommand.

mod apply;
mod cells;
mod check;
mod completions;
mod demo;
mod feed;
mod forward;
mod init;
mod listen;
mod man;
mod receive;
mod repair;
mod run;
mod secrets;
mod setup;
mod status;
mod teardown;
mod token;
mod trigger;
mod unrouted;
mod user;
mod webhook;

use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{Config, ConfigError, Log, Sources, load};
use crate::events::Catalogue;
use crate::{api, postgres, telemetry};

/// Delivers signed webhooks for what a music-distribution platform commits to its Postgres
#[derive(Debug, Parser)]
#[command(name = "walhook", version, propagate_version = true)]
pub struct Cli {
    /// TOML file with settings
    #[arg(long, global = true, env = "WALHOOK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set one setting; overrides environment and file; repeatable
    #[arg(long = "set", global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Capture changes, deliver webhooks and serve the API until stopped
    Run(run::Arguments),
    /// Propose a configuration for the platform's tables, or explain the present one
    Init(init::Arguments),
    /// Prepare the store and the primary (idempotent)
    Setup(setup::Arguments),
    /// Check every precondition and print a fix for each failure
    Check(check::Arguments),
    /// Show the state of processes, slot, deliveries and webhooks
    Status(status::Arguments),
    /// Remove everything that Walhook created on the primary
    Teardown(teardown::Arguments),
    /// After a gap: find the transitions that were missed, raise their events, and resume streaming
    /// from the same snapshot
    Repair(repair::Arguments),
    /// List events that could not be routed, route them again, or discard them
    #[command(subcommand)]
    Unrouted(unrouted::UnroutedAction),
    /// List, disable, enable and recover webhooks of all users
    Webhook(webhook::Arguments),
    /// Create, list and revoke API tokens
    #[command(subcommand)]
    Token(token::TokenAction),
    /// Complete a rotation of the master key
    #[command(subcommand)]
    Secrets(secrets::SecretsAction),
    /// Erase a user's data
    #[command(subcommand)]
    User(user::UserAction),
    /// List and change the cells that divide the events of a log
    #[command(subcommand)]
    Cells(cells::CellsAction),
    #[command(flatten)]
    Receiver(ReceiverCommand),
    /// Run a whole platform on loopback: a private Postgres, simulated traffic, the sidecar and a
    /// receiver
    Demo(demo::Arguments),
    /// Print the OpenAPI document of the management API
    Openapi,
    /// Print the AsyncAPI document of the requests that receivers get
    Asyncapi,
    /// Print the effective configuration with secrets redacted
    Config,
    /// Print the completion script for a shell
    Completions(completions::Arguments),
    /// Write the manual pages
    Man(man::Arguments),
}

/// Commands for users of the API and developers of receivers. They need no settings and no database.
#[derive(Debug, Subcommand)]
enum ReceiverCommand {
    /// Run a reference receiver that verifies deliveries and prints one JSON line for each
    Receive(receive::Arguments),
    /// Follow the event feed, and forward each event, signed, to a receiver under development
    Listen(listen::Arguments),
    /// Print the events of the feed, one JSON line for each
    Feed(feed::Arguments),
    /// Send an example of an event, signed, to a receiver under development
    Trigger(trigger::Arguments),
    /// Create, change and delete webhooks as a file describes them
    Apply(apply::Arguments),
}

/// For users of the API: the feed of events, forwarding and examples while you develop a receiver,
/// a reference receiver, and webhooks as code
#[derive(Debug, Parser)]
#[command(name = "walhook-listen", version, propagate_version = true)]
pub struct ReceiverCli {
    #[command(subcommand)]
    command: StandaloneCommand,
}

#[derive(Debug, Subcommand)]
enum StandaloneCommand {
    #[command(flatten)]
    Receiver(Box<ReceiverCommand>),
    /// Print the completion script for a shell
    Completions(completions::Arguments),
    /// Write the manual pages
    Man(man::Arguments),
}

/// Whether a command has succeeded, or an error to print.
type CommandResult = anyhow::Result<bool>;

impl Cli {
    /// Runs the command. Exit codes: 0 for success, 1 for a failure, 2 for a wrong command line or
    /// configuration.
    pub async fn execute(self) -> ExitCode {
        exit_code(self.dispatch().await)
    }

    async fn dispatch(self) -> CommandResult {
        crate::failpoint::start();
        let is_created =
            |path: &PathBuf| matches!(&self.command, Command::Init(init) if init.may_create(path));
        let sources = Sources {
            flags: self.set,
            environment: std::env::vars_os().collect(),
            file: self.config.filter(|path| !is_created(path)),
        };

        let config = || -> Result<Config, ConfigError> {
            let config = load(sources)?;
            start_logs(&config.log)?;
            Ok(config)
        };

        match self.command {
            Command::Run(arguments) => run::execute(arguments, config()?).await,
            Command::Init(arguments) => init::execute(arguments, config()?).await,
            Command::Setup(arguments) => setup::execute(arguments, config()?).await,
            Command::Check(arguments) => check::execute(arguments, config()?).await,
            Command::Status(arguments) => status::execute(arguments, config()?).await,
            Command::Teardown(arguments) => teardown::execute(arguments, config()?).await,
            Command::Repair(arguments) => repair::execute(arguments, config()?).await,
            Command::Unrouted(action) => unrouted::execute(action, config()?).await,
            Command::Webhook(arguments) => webhook::execute(arguments, config()?).await,
            Command::Token(action) => token::execute(action, config()?).await,
            Command::Secrets(action) => secrets::execute(action, config()?).await,
            Command::User(action) => user::execute(action, config()?).await,
            Command::Cells(action) => cells::execute(action, config()?).await,
            Command::Receiver(command) => command.execute().await,
            Command::Demo(arguments) => {
                // Other messages would be mixed with the table.
                start_logs(&Log {
                    filter: "error".into(),
                    ..Log::default()
                })?;
                demo::execute(arguments).await
            }
            // The default path: the document describes the build, not an installation.
            Command::Openapi => {
                let base_path = Config::default().http.base_path;
                print_text(&api::openapi_document(&base_path, &Catalogue::default()))
            }
            Command::Asyncapi => print_text(&api::asyncapi_document(&Catalogue::default())),
            Command::Config => print_text(&toml::to_string(&config()?)?),
            Command::Completions(arguments) => completions::execute::<Cli>(&arguments),
            Command::Man(arguments) => man::execute::<Cli>(&arguments),
        }
    }
}

impl ReceiverCommand {
    async fn execute(self) -> CommandResult {
        start_logs(&Log::default())?;

        match self {
            ReceiverCommand::Receive(arguments) => receive::execute(arguments).await,
            ReceiverCommand::Listen(arguments) => listen::execute(arguments).await,
            ReceiverCommand::Feed(arguments) => feed::execute(arguments).await,
            ReceiverCommand::Trigger(arguments) => trigger::execute(arguments).await,
            ReceiverCommand::Apply(arguments) => apply::execute(arguments).await,
        }
    }
}

impl ReceiverCli {
    /// Runs the command. Exit codes as of [`Cli::execute`].
    pub async fn execute(self) -> ExitCode {
        exit_code(match self.command {
            StandaloneCommand::Receiver(command) => command.execute().await,
            StandaloneCommand::Completions(arguments) => {
                completions::execute::<ReceiverCli>(&arguments)
            }
            StandaloneCommand::Man(arguments) => man::execute::<ReceiverCli>(&arguments),
        })
    }
}

fn exit_code(result: CommandResult) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is::<apply::ChangesExist>() => ExitCode::from(2),
        Err(error) => {
            telemetry::log_fatal(&postgres::describe_causes(&error));
            ExitCode::from(if error.is::<ConfigError>() { 2 } else { 1 })
        }
    }
}

fn start_logs(log: &Log) -> Result<(), ConfigError> {
    telemetry::start(log).map_err(ConfigError::Invalid)
}

/// Prints a text. A reader that has read enough, such as `head`, is no failure.
fn print_text(text: &str) -> CommandResult {
    write_output(text)?;
    Ok(true)
}

/// Returns a table with a line of headers and aligned columns.
fn table<const N: usize>(headers: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let lines: Vec<[String; N]> = std::iter::once(headers.map(str::to_owned))
        .chain(rows)
        .collect();
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);

    let text = |line: &[String; N]| {
        let cells = line.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", padded.join("  ").trim_end())
    };
    lines.iter().map(text).collect()
}

/// Writes to standard output. Returns false if nobody reads it any more.
fn write_output(text: &str) -> anyhow::Result<bool> {
    let mut output = std::io::stdout();

    match output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => Ok(result.map(|()| true)?),
    }
}

/// Parses a name that fits on one line of a list.
fn plain_text(text: &str) -> Result<String, String> {
    match text {
        "" => Err("must not be empty".into()),
        _ if text.chars().count() > 200 => Err("must not be longer than 200 characters".into()),
        _ if text.chars().any(char::is_control) => {
            Err("must not contain control characters".into())
        }
        _ => Ok(text.into()),
    }
}

/// Prints what a command has done, a line for each step.
fn print_steps(done: &[String], nothing: &str) -> CommandResult {
    match done {
        [] => println!("{nothing}"),
        done => println!("{}", done.join("\n")),
    }

    Ok(true)
}

/// Asks for confirmation on the terminal, unless `yes` was given. Fails without a terminal.
fn confirmed(yes: bool, command: &str, question: &str) -> anyhow::Result<bool> {
    if yes {
        return Ok(true);
    }

    let input = std::io::stdin();
    if !input.is_terminal() {
        anyhow::bail!(
            "{command} needs confirmation, and there is no terminal: add --yes to confirm"
        );
    }

    print!("{question}? [y/N] ");
    std::io::stdout().flush()?;

    let mut answer = String::new();
    input.lock().read_line(&mut answer)?;

    let is_confirmed = matches!(answer.trim().to_lowercase().as_str(), "y" | "yes");
    if !is_confirmed {
        println!("nothing was changed");
    }

    Ok(is_confirmed)
}

/// Waits for SIGINT or SIGTERM.
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};

    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };

    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}
