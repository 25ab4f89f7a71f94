//! The values by which webhooks can filter, as far as the account's events show them.

use super::fault::Result;
use super::service::Manage;
use crate::domain::event::{EventKind, UserId};
use crate::events::{Statuses, statuses};
use crate::store::feed::{self, FilterValue};

/// Takes the store a few milliseconds. A label or an outlet without an event among so many is rarely
/// looked for, and can be given by its id.
const EXAMINED: i64 = 2_000;
/// Values of each list: a search among them narrows them down.
const MOST: i64 = 500;

impl Manage {
    /// Returns the labels and outlets of the user's newest events, and all statuses that the
    /// catalogue or these events have.
    pub async fn filter_values(&self, user: &UserId) -> Result<Vec<FilterValue>> {
        let _search = self.searches.begin(user)?;
        let mut values = feed::filter_values(&self.store, user, EXAMINED, MOST).await?;

        let named = EventKind::ALL
            .iter()
            .flat_map(|kind| match statuses(*kind) {
                Statuses::OneOf(names) => names,
                Statuses::None | Statuses::Any => Vec::new(),
            });

        for name in named {
            let status = FilterValue {
                list: "statuses".to_owned(),
                value: name,
                name: None,
                release: None,
            };

            if !values.contains(&status) {
                values.push(status);
            }
        }

        Ok(values)
    }
}
