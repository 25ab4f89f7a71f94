//! Whether a receiver's URL may be saved: its form, and where its host's name leads at the moment.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use utoipa::ToSchema;

use super::ApiState;
use super::problem::{FieldError, Problem};
use crate::domain::event::UserId;

/// A lookup may take so long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Lookups for one user at a time: names under a silent nameserver take seconds each, from everybody's.
const MOST_AT_ONCE: usize = 2;

/// Why no lookup's result allows a URL, fit for the webhook's owner to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Nothing would ever be sent there.
    Refused(String),
    /// The name leads nowhere at the moment, or it is not known where.
    Unresolved(String),
}

/// Judges a URL by itself alone, with the reason where it may not be called.
pub type CheckForm = dyn Fn(&str) -> Result<(), String> + Send + Sync;
/// Judges a URL by the addresses of its host's name.
pub type CheckAddresses = dyn Fn(String) -> BoxFuture<'static, Result<(), Unreachable>> + Send + Sync;

/// What says whether a receiver's URL may be called.
#[derive(Clone)]
pub struct UrlCheck {
    pub form: Arc<CheckForm>,
    pub lookup: Arc<CheckAddresses>,
}

/// What is taken as it is, and may not do what was meant
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Warning {
    /// A JSON pointer (RFC 6901) into the request's body
    #[schema(example = "/url")]
    pub pointer: String,
    #[schema(example = "the host's name does not resolve")]
    pub detail: String,
}

/// How many lookups are under way, by user.
#[derive(Clone, Default)]
pub struct Lookups(Arc<Mutex<HashMap<UserId, usize>>>);

/// One of them, until it is dropped.
struct UnderWay {
    lookups: Lookups,
    user: UserId,
}

impl Lookups {
    fn begin(&self, user: &UserId) -> Option<UnderWay> {
        let mut counts = self.0.lock().expect("no holder of this lock panics");
        let count = counts.entry(user.clone()).or_default();
        if *count == MOST_AT_ONCE {
            return None;
        }
        *count += 1;
        Some(UnderWay { lookups: self.clone(), user: user.clone() })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut counts = self.lookups.0.lock().expect("no holder of this lock panics");
        if let Some(count) = counts.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user);
            }
        }
    }
}

/// Looks up where the URL leads. A name that does not resolve is no obstacle: it may the next minute, and a receiver that cannot
/// be reached is what the delivery log is for. One that leads where nothing may be sent is refused.
pub async fn look_up(state: &ApiState, user: &UserId, url: Option<&str>) -> Result<Vec<Warning>, Problem> {
    let Some(url) = url else { return Ok(Vec::new()) };
    let Some(_under_way) = state.lookups.begin(user) else {
        return Ok(vec![warning("the host's name was not looked up: other lookups for this account are under way")]);
    };
    match tokio::time::timeout(TIMEOUT, (state.url_check.lookup)(url.to_owned())).await {
        Ok(Ok(())) => Ok(Vec::new()),
        // Where a name leads may change.
        Ok(Err(Unreachable::Refused(reason))) => {
            Err(Problem::validation(vec![FieldError::new("/url", reason)]).transient())
        }
        Ok(Err(Unreachable::Unresolved(reason))) => Ok(vec![warning(reason)]),
        Err(_) => Ok(vec![warning("the host's name could not be looked up in time")]),
    }
}

fn warning(detail: impl Into<String>) -> Warning {
    Warning { pointer: "/url".to_owned(), detail: detail.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_a_few_lookups_at_a_time_and_others_have_theirs() {
        let (lookups, user) = (Lookups::default(), UserId("1".into()));
        let held: Vec<UnderWay> = (0..MOST_AT_ONCE).map(|_| lookups.begin(&user).unwrap()).collect();
        assert!(lookups.begin(&user).is_none());
        assert!(lookups.begin(&UserId("2".into())).is_some());
        drop(held);
        assert!(lookups.begin(&user).is_some());
        assert!(lookups.0.lock().unwrap().is_empty(), "nobody is remembered");
    }
}
