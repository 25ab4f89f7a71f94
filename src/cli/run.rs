//! `walhook run`: the sidecar itself.

use clap::ValueEnum;

use super::CommandResult;
use crate::app::{self, Roles};
use crate::config::Config;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Roles of this process. One replica captures; all deliver
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "capture,deliver,api",
        value_name = "ROLES"
    )]
    roles: Vec<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    /// Read the primary's changes, or a log, and store events
    Capture,
    /// Send due deliveries to receivers
    Deliver,
    /// Serve the management API and the web UI
    Api,
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    let has = |role| arguments.roles.contains(&role);
    let roles = Roles {
        capture: has(Role::Capture),
        deliver: has(Role::Deliver),
        api: has(Role::Api),
    };

    app::run(config, roles).await?;
    Ok(true)
}
