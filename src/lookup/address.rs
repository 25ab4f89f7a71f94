//! Looks up a user's e-mail address.

use super::fetch::{LookupError, Primary};
use crate::config;
use crate::domain::event::UserId;
use crate::domain::table::{Table, app_user};

/// Returns the user's current e-mail address, if there is one. Opens a connection for each call: calls are rare.
pub async fn email_of(url: &str, source: &config::Source, user: &UserId) -> Result<Option<String>, LookupError> {
    let rows = match Primary::new(url, source).rows(Table::AppUser, &[user.0.to_string()], None).await {
        // The platform's ids are numbers, and this id is not a number: there is no such user.
        Err(LookupError::Query { source, .. }) if source.code().is_some_and(|code| code.code().starts_with("22")) => {
            return Ok(None);
        }
        rows => rows?,
    };
    let email = rows.first().and_then(|row| row.text(app_user::email)).map(str::trim);
    Ok(email.filter(|email| !email.is_empty()).map(str::to_owned))
}
