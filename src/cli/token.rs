//! `walhook token`: API tokens. Each acts for one user.

use clap::Subcommand;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::{CommandResult, plain_text, print_text};
use crate::app::open_store;
use crate::config::Config;
use crate::domain::event::UserId;
use crate::domain::text::{self, TextFault};
use crate::domain::time::millis;
use crate::manage::{NewToken, Scope, tokens};
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
        /// The last day on which it works (UTC). By default it does not expire
        #[arg(long, value_name = "YYYY-MM-DD", value_parser = end_of_day)]
        expires: Option<Timestamp>,
        /// Allow reading only
        #[arg(long)]
        read_only: bool,
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
        TokenAction::Create {
            user,
            name,
            expires,
            read_only,
        } => {
            let new = NewToken {
                name: name.unwrap_or_default(),
                scope: if read_only {
                    Scope::ReadOnly
                } else {
                    Scope::Full
                },
                expires_at: expires,
            };
            let token = tokens::create(&store, &UserId(user.into()), &new).await?;
            println!("{}", token.expose_secret());
        }
        TokenAction::List { user } => {
            let user = user.map(|user| UserId(user.into()));
            let tokens = access::list_tokens(&store, user.as_ref()).await?;
            return print_text(&tokens.iter().map(line).collect::<String>());
        }
        TokenAction::Revoke { id } => {
            anyhow::ensure!(
                access::revoke_token(&store, None, id).await?,
                "there is no token {id}: see `walhook token list`"
            );
        }
    }

    Ok(true)
}

fn name(text: &str) -> Result<String, TextFault> {
    text::name(text).map(str::to_owned)
}

/// Parses a day in the future, and returns its end.
fn end_of_day(text: &str) -> Result<Timestamp, String> {
    let day: Date = text
        .parse()
        .map_err(|_| "expected a day such as 2027-03-31")?;
    let end = day.tomorrow().and_then(|next| next.to_zoned(TimeZone::UTC));
    let end = end.map_err(|error| error.to_string())?.timestamp();

    Ok(tokens::expiry(end, Timestamp::now())?)
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
