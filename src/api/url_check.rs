//! What is told of a receiver's URL that is saved although its host could not be checked.

use serde::Serialize;
use utoipa::ToSchema;

use super::ApiState;
use super::problem::Problem;
use crate::domain::event::UserId;
use crate::manage::UrlWarning;

/// What is taken as it is, and may not do what was meant
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Warning {
    /// A JSON pointer (RFC 6901) into the request's body
    #[schema(example = "/url")]
    pub pointer: String,
    #[schema(example = "the host's name does not resolve")]
    pub detail: String,
}

impl From<UrlWarning> for Warning {
    fn from(warning: UrlWarning) -> Warning {
        Warning { pointer: "/url".to_owned(), detail: warning.to_string() }
    }
}

/// Looks up where the URL leads.
pub async fn look_up(state: &ApiState, user: &UserId, url: Option<&str>) -> Result<Vec<Warning>, Problem> {
    let Some(url) = url else { return Ok(Vec::new()) };
    let Ok(url) = state.manage().receiver_url(url.to_owned()) else { return Err(Problem::internal()) };
    Ok(state.manage().check_host(user, &url).await?.map(Warning::from).into_iter().collect())
}
