//! The user's API tokens: the list with the form that creates one, the page that shows a new one
//! once, and revoking.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use uuid::Uuid;

use super::error::PageError;
use super::fields::Fields;
use super::flash::Flash;
use super::format::sentence;
use super::page::{Frame, Pages, Section, page, redirect, secret_page, with_status};
use super::state::link;
use super::time::Ago;
use super::visit::{Ids, Visit};
use crate::domain::text;
use crate::manage::{Cursor, Fault, List, ListPage, NewToken, Scope, Token};

const PATH: &str = "/ui/tokens";
const PAGE: usize = 50;
/// When a new token may expire: days, and the label.
const LIFETIMES: [(&str, &str); 5] = [
    ("7", "7 days"),
    ("30", "30 days"),
    ("90", "90 days"),
    ("365", "A year"),
    ("", "Never"),
];
const DEFAULT_LIFETIME: &str = "90";

#[derive(Template)]
#[template(path = "ui/tokens.html")]
struct TokensPage {
    frame: Frame,
    tokens: Vec<Token>,
    pages: Pages,
    /// The name, scope and lifetime of the form, as submitted.
    name: String,
    scope: String,
    lifetime: String,
    /// Why the name is invalid, or why no token was created.
    name_error: Option<String>,
    error: Option<String>,
}

impl TokensPage {
    /// Returns the label of the token's state and the class of its badge.
    fn state(token: &Token) -> (&'static str, &'static str) {
        match token {
            _ if token.revoked_at.is_some() => ("Revoked", "muted"),
            _ if token.expires_at.is_some_and(|at| at <= Timestamp::now()) => ("Expired", "muted"),
            _ if token.scope == Scope::ReadOnly => ("Read-only", "good"),
            _ => ("Full access", "good"),
        }
    }

    fn is_valid(token: &Token) -> bool {
        TokensPage::state(token).1 == "good"
    }

    async fn new(visit: &Visit, fields: &Fields) -> Result<TokensPage, PageError> {
        let cursor = fields.linked("cursor", |text| Cursor::parse(List::Tokens, text))?;
        let path = |cursor: &str| link(PATH, [("cursor", cursor)]);
        let ListPage { items, next, .. } =
            visit.manage().tokens(visit.user(), cursor, PAGE).await?;

        Ok(TokensPage {
            frame: visit.frame(Section::Account),
            tokens: items,
            pages: Pages::new(fields.one("cursor"), next, path),
            name: String::new(),
            scope: Scope::Full.as_str().to_owned(),
            lifetime: DEFAULT_LIFETIME.to_owned(),
            name_error: None,
            error: None,
        })
    }
}

pub async fn list(visit: Visit, fields: Fields) -> Result<Response, PageError> {
    Ok(page(&TokensPage::new(&visit, &fields).await?))
}

#[derive(Template)]
#[template(path = "ui/token.html")]
struct TokenPage {
    frame: Frame,
    token: Token,
    text: SecretString,
}

/// Creates a token, and shows it in the response to the form: it is stored nowhere, so that no
/// other page can show it.
pub async fn create(visit: Visit, fields: Fields) -> Result<Response, PageError> {
    let (lifetime, _) = fields.chosen("lifetime", |text| {
        LIFETIMES.iter().find(|(days, _)| *days == text)
    })?;
    let days: Option<i64> = lifetime.parse().ok();
    let scope: Scope = fields.chosen("scope", |text| text.parse().ok())?;
    let name = text::name(fields.one("name"));

    let (status, name_error, error) = match name {
        Err(fault) => {
            let message = sentence(&fault.to_string());
            (StatusCode::UNPROCESSABLE_ENTITY, Some(message), None)
        }
        Ok(name) => {
            let new = NewToken {
                name: name.to_owned(),
                scope,
                expires_at: days
                    .map(|days| Timestamp::now() + SignedDuration::from_hours(24 * days)),
            };

            match visit.manage().create_token(&visit.actor, &new).await {
                Ok(created) => {
                    return Ok(secret_page(&TokenPage {
                        frame: visit.frame(Section::Account),
                        token: created.token,
                        text: created.text,
                    }));
                }
                Err(fault @ Fault::TokenLimit { .. }) => {
                    let message = sentence(&fault.to_string());
                    (StatusCode::CONFLICT, None, Some(message))
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    };

    let listed = TokensPage::new(&visit, &fields).await?;
    let template = TokensPage {
        name: fields.one("name").to_owned(),
        scope: scope.as_str().to_owned(),
        lifetime: (*lifetime).to_owned(),
        name_error,
        error,
        ..listed
    };
    Ok(with_status(status, &template))
}

#[derive(Template)]
#[template(path = "ui/revoke_token.html")]
struct RevokePage {
    frame: Frame,
    token: Token,
}

/// Shows the page that asks for confirmation.
pub async fn ask(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    let token = visit.manage().token(visit.user(), id).await?;
    Ok(page(&RevokePage {
        frame: visit.frame(Section::Account),
        token,
    }))
}

pub async fn revoke(visit: Visit, Ids(id): Ids<Uuid>) -> Result<Response, PageError> {
    visit.manage().revoke_token(&visit.actor, id).await?;
    Ok(redirect(PATH, Flash::good("Token revoked.")))
}
