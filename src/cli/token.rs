//! `walhook token`: API tokens. Each acts for one user.

use clap::Subcommand;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use secrecy::ExposeSecret;
use serde_json::json;
use uuid::Uuid;

use super::{CommandResult, plain_text, print_text, table};
use crate::app::cells::open_store_of;
use crate::app::open_store;
use crate::config::Config;
use crate::domain::event::UserId;
use crate::domain::text::{self, TextFault};
use crate::domain::time::millis;
use crate::lookup::user_exists;
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
        /// Create it even if the platform has no such user
        #[arg(long)]
        force: bool,
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
    match action {
        TokenAction::Create {
            user,
            name,
            force,
            expires,
            read_only,
        } => {
            let user = UserId(user.into());
            if !force {
                verify_user(&config, &user).await?;
            }

            let scope = match read_only {
                true => Scope::ReadOnly,
                false => Scope::Full,
            };
            let new = NewToken {
                name: name.unwrap_or_default(),
                scope,
                expires_at: expires,
            };
            let store = open_store_of(&config, &user).await?;
            let token = tokens::create(&store, &user, &new).await?;
            println!("{}", token.expose_secret());
        }
        TokenAction::List { user, json } => {
            let store = open_store(config.store_url()?, 1).await?;
            let user = user.map(|user| UserId(user.into()));
            let tokens = access::list_tokens(&store, user.as_ref()).await?;
            return print_text(&match json {
                true => tokens.iter().map(json_line).collect(),
                false => table(COLUMNS, tokens.iter().map(cells)),
            });
        }
        TokenAction::Revoke { id } => {
            let store = open_store(config.store_url()?, 1).await?;
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

const COLUMNS: [&str; 8] = [
    "ID",
    "USER",
    "CREATED",
    "SCOPE",
    "EXPIRES",
    "LAST USED",
    "REVOKED",
    "NAME",
];

fn cells(token: &access::Token) -> [String; 8] {
    let time = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), millis);

    [
        token.id.to_string(),
        token.user.to_string(),
        millis(token.created_at),
        token.scope.as_str().to_owned(),
        time(token.expires_at),
        time(token.used_at),
        time(token.revoked_at),
        token.name.clone(),
    ]
}

fn json_line(token: &access::Token) -> String {
    let line = json!({
        "id": token.id,
        "user": token.user.to_string(),
        "created_at": millis(token.created_at),
        "scope": token.scope.as_str(),
        "expires_at": token.expires_at.map(millis),
        "last_used_at": token.used_at.map(millis),
        "revoked_at": token.revoked_at.map(millis),
        "name": token.name,
    });

    format!("{line}\n")
}
