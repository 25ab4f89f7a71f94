//! `walhook token`: API tokens. Each acts for one user.

use clap::Subcommand;
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::{CommandResult, plain_text, print_text};
use crate::app::open_store;
use crate::config::Config;
use crate::domain::event::UserId;
use crate::domain::text::{self, TextFault};
use crate::domain::time::millis;
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
    },
    /// List tokens (without their values)
    List {
        /// List only this user's tokens
        #[arg(long, value_name = "ID")]
        user: Option<String>,
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
        TokenAction::Create { user, name } => {
            let token = tokens::create(
                &store,
                &UserId(user.into()),
                name.as_deref().unwrap_or_default(),
            )
            .await?;
            println!("{}", token.expose_secret());
        }
        TokenAction::List { user } => {
            let user = user.map(|user| UserId(user.into()));
            let tokens = access::list_tokens(&store, user.as_ref()).await?;
            return print_text(&tokens.iter().map(line).collect::<String>());
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

/// A line of tab-separated columns: id, user, created, revoked or a hyphen, name.
fn line(token: &access::Token) -> String {
    let revoked = token.revoked_at.map_or_else(|| "-".to_owned(), millis);
    let columns = [
        token.id.to_string(),
        token.user.to_string(),
        millis(token.created_at),
        revoked,
        token.name.clone(),
    ];

    format!("{}\n", columns.join("\t"))
}
