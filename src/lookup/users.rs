//! Looks up users: whether they exist, and their e-mail addresses. Opens a connection for each call:
//! calls are rare.

use super::fetch::{Primary, Result};
use crate::config;
use crate::domain::change::Tuple;
use crate::domain::event::UserId;
use crate::domain::table::{Table, app_user};

/// Returns the user's current e-mail address, if there is one.
pub async fn email_of(url: &str, source: &config::Source, user: &UserId) -> Result<Option<String>> {
    let row = find(url, source, user).await?;
    let email = row.as_ref().and_then(|row| row.text(app_user::email));
    let email = email.map(str::trim).filter(|email| !email.is_empty());
    Ok(email.map(str::to_owned))
}

/// Returns whether the platform has the user. None if it has no table of users.
pub async fn user_exists(
    url: &str,
    source: &config::Source,
    user: &UserId,
) -> Result<Option<bool>> {
    if source.tables.is_absent(Table::AppUser) {
        return Ok(None);
    }

    Ok(Some(find(url, source, user).await?.is_some()))
}

async fn find(url: &str, source: &config::Source, user: &UserId) -> Result<Option<Tuple>> {
    // If the platform's ids are numbers and this id is not, the key fails: there is no such user.
    let fetched = Primary::new(url, source)
        .rows(Table::AppUser, &[user.0.to_string()], None)
        .await?;
    Ok(fetched.rows.into_iter().next())
}
