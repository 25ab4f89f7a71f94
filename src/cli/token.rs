//! `walhook token`: API tokens. Each acts for one user.

use clap::Subcommand;
use secrecy::ExposeSecret;
use serde_json::json;
use uuid::Uuid;

use super::{CommandResult, plain_text, print_text, table};
use crate::app::open_store;
use crate::config::Config;
use crate::domain::event::UserId;
use crate::domain::text::{self, TextFault};
use crate::domain::time::millis;
use crate::lookup::user_exists;
use crate::manage::tokens;
use crate::store::access;

#[derive(Debug, Subcommand)]
pub enum TokenAction {
    /// Create a token and print it. It cannot be shown again
    Create {
        /// The platform's id of the user that the token acts for
        #[arg(long, value_name = "ID", value_parser = plain_text)]
        user: String,
        /// A name to recognise the token by in the list
        #[arg(long, value_name = "NAME", value_parser = name)]
        name: Option<String>,
        /// Create it even if the platform has no such user
        #[arg(long)]
        force: bool,
    },
    /// List tokens (without their values)
    List {
        /// List only this user's tokens
        #[arg(long, value_name = "ID")]
        user: Option<String>,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Revoke a token, effective with the next request
    Revoke {
        /// The token's id from `token list`
        id: Uuid,
    },
}

pub async fn execute(action: TokenAction, config: Config) -> CommandResult {
    let store = open_store(config.store_url()?, 1).await?;

    match action {
        TokenAction::Create { user, name, force } => {
            let user = UserId(user.into());
            if !force {
                verify_user(&config, &user).await?;
            }

            let token = tokens::create(&store, &user, name.as_deref().unwrap_or_default()).await?;
            println!("{}", token.expose_secret());
        }
        TokenAction::List { user, json } => {
            let user = user.map(|user| UserId(user.into()));
            let tokens = access::list_tokens(&store, user.as_ref()).await?;
            return print_text(&match json {
                true => tokens.iter().map(json_line).collect(),
                false => table(COLUMNS, tokens.iter().map(cells)),
            });
        }
        TokenAction::Revoke { id } => {
            anyhow::ensure!(
                access::revoke_token(&store, id).await?,
                "there is no token {id}: see `walhook token list`"
            );
        }
    }

    Ok(true)
}

fn name(text: &str) -> Result<String, TextFault> {
    text::name(text).map(str::to_owned)
}

/// Fails if the platform has no such user. Warns if it cannot be asked.
async fn verify_user(config: &Config, user: &UserId) -> anyhow::Result<()> {
    let found = match config.source_url() {
        Ok(url) => user_exists(url, &config.source, user).await,
        Err(error) => {
            eprintln!("warning: it is not known whether user {user} exists: {error}");
            return Ok(());
        }
    };

    match found {
        Ok(Some(true)) => {}
        Ok(Some(false)) => anyhow::bail!(
            "the platform has no user {user}: use an id of source.tables.app_user, which owns labels, or --force to create the token anyway"
        ),
        Ok(None) => eprintln!(
            "warning: it is not known whether user {user} exists: source.tables.app_user is absent"
        ),
        Err(error) => {
            eprintln!("warning: it is not known whether user {user} exists: {error}");
        }
    }

    Ok(())
}

const COLUMNS: [&str; 5] = ["ID", "USER", "CREATED", "REVOKED", "NAME"];

fn cells(token: &access::Token) -> [String; 5] {
    [
        token.id.to_string(),
        token.user.to_string(),
        millis(token.created_at),
        token.revoked_at.map_or_else(|| "-".to_owned(), millis),
        token.name.clone(),
    ]
}

fn json_line(token: &access::Token) -> String {
    let line = json!({
        "id": token.id,
        "user": token.user.to_string(),
        "created_at": millis(token.created_at),
        "revoked_at": token.revoked_at.map(millis),
        "name": token.name,
    });

    format!("{line}\n")
}
