//! Operations that list, create, read and revoke API tokens.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use secrecy::ExposeSecret;
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::body::Object;
use super::query::{NOT_A_TIME, Page, QueryParameters, TokenId};
use super::schema::ScopeName;
use super::state::ApiState;
use crate::auth::{Caller, Changer};
use crate::domain::members::{FieldError, Members, string};
use crate::domain::text;
use crate::domain::time::millis;
use crate::http::problem::Problem;
use crate::manage::{List, NewToken, Scope, Token, TokenWithText, tokens};

/// An API token, without its text
#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
pub struct TokenBody {
    id: Uuid,
    name: String,
    #[schema(value_type = ScopeName)]
    scope: Scope,
    #[schema(format = DateTime)]
    created_at: String,
    /// When it stops working; null if it does not expire
    #[schema(required = true, format = DateTime)]
    expires_at: Option<String>,
    /// To the minute; null if it was never used
    #[schema(required = true, format = DateTime)]
    last_used_at: Option<String>,
    #[schema(required = true, format = DateTime)]
    revoked_at: Option<String>,
}

impl From<Token> for TokenBody {
    fn from(token: Token) -> Self {
        TokenBody {
            id: token.id,
            name: token.name,
            scope: token.scope,
            created_at: millis(token.created_at),
            expires_at: token.expires_at.map(millis),
            last_used_at: token.used_at.map(millis),
            revoked_at: token.revoked_at.map(millis),
        }
    }
}

/// A token with its text, which is shown only this once
#[derive(Serialize, ToSchema)]
pub struct CreatedToken {
    #[serde(flatten)]
    details: TokenBody,
    /// Sent as `Authorization: Bearer <token>`
    #[schema(example = "whk_…")]
    token: String,
}

/// A token to create
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code)] // The schema of the body; a `NewToken` is what is read from it.
pub struct CreateToken {
    /// To recognise the token by. 1 to 200 characters, none of them control or invisible characters
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    /// By default `full`
    #[schema(value_type = Option<ScopeName>, nullable = false)]
    scope: Option<Scope>,
    /// When it stops working. By default it does not expire
    #[schema(value_type = Option<String>, format = DateTime, nullable = false, example = "2099-12-31T00:00:00Z")]
    expires_at: Option<Timestamp>,
}

fn new_token(members: &mut Members) -> Option<NewToken> {
    let name = members.required("name", string(|name| text::name(&name).map(str::to_owned)));
    let scope = members.optional("scope", string(|name| name.parse()));
    let expires_at = members.optional(
        "expires_at",
        string(|time| time.parse::<Timestamp>().map_err(|_| NOT_A_TIME)),
    );
    let expires_at = match expires_at? {
        Some(at) => match tokens::expiry(at, Timestamp::now()) {
            Ok(at) => Some(at),
            Err(detail) => {
                members.error(FieldError::new("/expires_at", detail));
                return None;
            }
        },
        None => None,
    };

    Some(NewToken {
        name: name?,
        scope: scope?.unwrap_or(Scope::Full),
        expires_at,
    })
}

/// List API tokens
///
/// Newest first, with the latest hundred that were revoked or have expired.
#[utoipa::path(
    get, path = "/tokens", tag = "tokens", operation_id = "listTokens",
    params(
        ("limit" = Option<u8>, Query, description = "The number of tokens; 50 by default", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the previous page",
         pattern = "^[A-Za-z0-9_-]{28}$"),
    ),
    responses((status = 200, description = "A page of tokens", body = Page<TokenBody>,
               headers(("Link" = String, description = "The next page, with rel=\"next\"; not on the last one"))))
)]
pub async fn list(
    State(state): State<ApiState>,
    Caller(user): Caller,
    mut parameters: QueryParameters,
) -> Result<Response, Problem> {
    let limit = parameters.limit();
    let cursor = parameters.cursor(List::Tokens);
    let target = parameters.finish()?;
    let page = state.manage().tokens(&user, cursor, limit).await?;
    Ok(Page::<TokenBody>::from(page).response(&target))
}

/// Create an API token
///
/// The response contains the token, which is shown only this once. It acts for the same user as the
/// one that the request is sent with, and stays valid if that one is revoked.
#[utoipa::path(
    post, path = "/tokens", tag = "tokens", operation_id = "createToken",
    request_body = CreateToken,
    responses(
        (status = 201, description = "Created", body = CreatedToken,
         headers(("Location" = String, description = "The token's URL"))),
        (status = 409, description = "The user has as many valid tokens as allowed, or a request with this Idempotency-Key is in progress"),
    )
)]
pub async fn create(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    body: Object,
) -> Result<Response, Problem> {
    let new = body.read(new_token)?;
    let TokenWithText { token, text } = state.manage().create_token(&actor, &new).await?;
    let location = format!("{}/tokens/{}", state.base_path(), token.id);
    let location = HeaderValue::try_from(location).map_err(|_| Problem::internal())?;
    let body = CreatedToken {
        details: token.into(),
        token: text.expose_secret().to_owned(),
    };

    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Json(body),
    )
        .into_response())
}

/// Read an API token
#[utoipa::path(
    get, path = "/tokens/{token}", tag = "tokens", operation_id = "readToken",
    responses((status = 200, description = "The token, without its text", body = TokenBody))
)]
pub async fn read(
    State(state): State<ApiState>,
    Caller(user): Caller,
    TokenId(id): TokenId,
) -> Result<Json<TokenBody>, Problem> {
    Ok(Json(state.manage().token(&user, id).await?.into()))
}

/// Revoke an API token
///
/// Effective with the next request. Sessions of the web UI that were opened with it end too. A token
/// can revoke itself.
#[utoipa::path(
    delete, path = "/tokens/{token}", tag = "tokens", operation_id = "revokeToken",
    responses((status = 204, description = "Revoked"))
)]
pub async fn revoke(
    State(state): State<ApiState>,
    Changer(actor): Changer,
    TokenId(id): TokenId,
) -> Result<StatusCode, Problem> {
    state.manage().revoke_token(&actor, id).await?;
    Ok(StatusCode::NO_CONTENT)
}
