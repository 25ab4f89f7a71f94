//! Where a user is reached by e-mail.

use super::fetch::{LookupError, Primary};
use crate::config;
use crate::domain::event::UserId;
use crate::domain::table::{Table, app_user};

/// The user's e-mail address as it is now; none where there is none, or no such user. Asked for rarely: over a connection that
/// ends with the answer.
pub async fn email_of(url: &str, source: &config::Source, user: &UserId) -> Result<Option<String>, LookupError> {
    let rows = match Primary::new(url, source).rows(Table::AppUser, &[user.0.to_string()]).await {
        // The platform's ids are numbers, and this is none: it is nobody's.
        Err(LookupError::Query { source, .. }) if source.code().is_some_and(|code| code.code().starts_with("22")) => {
            return Ok(None);
        }
        rows => rows?,
    };
    let email = rows.first().and_then(|row| row.text(app_user::email)).map(str::trim);
    Ok(email.filter(|email| !email.is_empty()).map(str::to_owned))
}
