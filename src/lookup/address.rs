//! Looks up a user's e-mail address.

use super::fetch::{Primary, Result};
use crate::config;
use crate::domain::event::UserId;
use crate::domain::table::{Table, app_user};

/// Returns the user's current e-mail address, if there is one. Opens a connection for each call:
/// calls are rare.
pub async fn email_of(url: &str, source: &config::Source, user: &UserId) -> Result<Option<String>> {
    // If the platform's ids are numbers and this id is not, the key fails: there is no such user.
    let fetched = Primary::new(url, source)
        .rows(Table::AppUser, &[user.0.to_string()], None)
        .await?;
    let email = fetched
        .rows
        .first()
        .and_then(|row| row.text(app_user::email))
        .map(str::trim);
    Ok(email.filter(|email| !email.is_empty()).map(str::to_owned))
}
