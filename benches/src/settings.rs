//! The settings of the measured Postgres servers, and the list of those that are not defaults.

use serde::Serialize;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres};

/// Durable, like a platform's database. The WAL sizes prevent checkpoints during some of the
/// repeats.
pub const SETTINGS: [(&str, &str); 5] = [
    ("synchronous_commit", "on"),
    ("shared_buffers", "512MB"),
    ("min_wal_size", "4GB"),
    ("max_wal_size", "16GB"),
    ("checkpoint_timeout", "30min"),
];

/// Settings that differ from the compiled-in defaults, except addresses and paths, which do not
/// affect speed.
const NOT_STOCK: &str = "select name, current_setting(name) from pg_settings
    where source in ('configuration file', 'command line') and setting is distinct from boot_val
      and name not in ('port', 'listen_addresses', 'unix_socket_directories', 'data_directory', 'config_file', 'hba_file', 'ident_file',
          'log_timezone', 'TimeZone', 'DateStyle', 'default_text_search_config', 'dynamic_shared_memory_type')
      and name not like 'lc\\_%'
    order by name";

#[derive(Debug, Serialize)]
pub struct Setting {
    name: String,
    value: String,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} = {}", self.name, self.value)
    }
}

/// Options of every measured server.
pub fn options() -> Options<'static> {
    Options {
        fsync: true,
        settings: &SETTINGS,
        ..Options::default()
    }
}

/// Returns the server's version, and its settings that are not defaults.
pub async fn read() -> anyhow::Result<(String, Vec<Setting>)> {
    let server = PrivatePostgres::start(options()).await?;
    let output = server.program("postgres").arg("--version").output().await?;
    let client = postgres::connect(&server.socket_url("postgres")).await?;
    let rows = client.query(NOT_STOCK, &[]).await?;

    let settings = rows
        .iter()
        .map(|row| Setting {
            name: row.get(0),
            value: row.get(1),
        })
        .collect();

    Ok((
        String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        settings,
    ))
}
