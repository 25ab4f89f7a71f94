//! `walhook secrets`: rotation of the master key.

use clap::Subcommand;

use super::CommandResult;
use crate::app::open_store;
use crate::config::Config;
use crate::store::keys;
use crate::vault::Vault;

#[derive(Debug, Subcommand)]
pub enum SecretsAction {
    /// Re-encrypt everything under the first master key, so that the other keys can be removed.
    /// Webhooks keep their secrets and headers
    Reencrypt,
}

pub async fn execute(action: SecretsAction, config: Config) -> CommandResult {
    let SecretsAction::Reencrypt = action;
    let store = open_store(config.store_url()?, 1).await?;
    let vault = Vault::new(&config.secrets.master_key)?;
    let keys::Reencrypted { done, unreadable } = keys::reencrypt(&store, &vault).await?;

    println!("{done} re-encrypted with key {}", vault.first_key());

    for (key, count) in &unreadable {
        println!(
            "{count} encrypted with key {key} cannot be read: add that key to secrets.master_key, after the first"
        );
    }

    Ok(unreadable.is_empty())
}
