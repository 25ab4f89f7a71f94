//! Finds the events that a search of the delivery log asks for: by their ids, or by what they are
//! about.

use uuid::Uuid;

use super::logs::LogFilter;
use super::statement::Statements;
use super::{ID_TOLERANCE_MS, Result, Store, lowest_id_at, millis_of_id};
use crate::domain::about::catalogue_key;
use crate::domain::event::{UserId, delivered_event};
use crate::sql::store as sql;

/// The newest events whose entries one page considers. Looking up their entries takes some tens of
/// milliseconds, if they are spread over the whole retention period.
const MOST_EVENTS: usize = 500;
/// Events with the same key that one statement reads, to find the newest: more than a release has.
const MOST_READ: i64 = 5_000;

/// The events that a search asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundEvents {
    pub ids: Vec<Uuid>,
    /// No entry of these events has a lower id.
    pub oldest: Uuid,
    /// Whether there are older ones.
    is_cut: bool,
}

impl FoundEvents {
    /// Where the search continues with older events.
    pub fn horizon(&self) -> Option<Uuid> {
        self.is_cut.then_some(self.oldest)
    }
}

/// Returns the events that the filter asks for, if it does. Only events before `below` are found:
/// other events have no entries below it.
pub async fn of_filter(
    store: &Store,
    user: &UserId,
    webhooks: &[Uuid],
    filter: &LogFilter,
    below: Uuid,
) -> Result<Option<FoundEvents>> {
    let given = filter.event_id.map(|event| vec![event]);
    let delivered = filter.delivery.map(|delivery| -> Vec<Uuid> {
        let event = |webhook| delivered_event(delivery, webhook);
        webhooks.iter().copied().map(event).collect()
    });
    let about = of_subject(store, user, filter, below).await?;

    let is_cut = about.as_ref().is_some_and(|ids| ids.len() > MOST_EVENTS);
    let about = about.map(|mut ids| {
        ids.truncate(MOST_EVENTS);
        ids
    });

    let sets = [given, delivered, about].into_iter().flatten();
    let found = sets.reduce(|mut left, right| {
        left.retain(|id| right.contains(id));
        left
    });

    Ok(found.map(|ids| {
        let first = ids.iter().min().copied().unwrap_or(Uuid::max());
        FoundEvents {
            oldest: lowest_id_at(millis_of_id(first).saturating_sub(ID_TOLERANCE_MS)),
            is_cut,
            ids,
        }
    }))
}

/// Returns the newest events about a release, a catalogue number or a track: one more than are
/// considered, if there are more.
async fn of_subject(
    store: &Store,
    user: &UserId,
    filter: &LogFilter,
    below: Uuid,
) -> Result<Option<Vec<Uuid>>> {
    let LogFilter {
        release,
        catalogue,
        track,
        ..
    } = filter;

    let most = i64::try_from(MOST_EVENTS + 1).unwrap_or(i64::MAX);
    // The clocks of the primary and of the replicas may disagree.
    let below = lowest_id_at(millis_of_id(below).saturating_add(ID_TOLERANCE_MS));
    let mut releases: Option<Vec<i64>> = release.map(|release| vec![release]);

    if let Some(number) = catalogue {
        let number = number.to_lowercase();
        let key = catalogue_key(&number);
        let of_number: Vec<i64> = store
            .fetch_all(
                sql::event::RELEASES_OF_CATALOGUE,
                &[user, &key, &number, &MOST_READ],
            )
            .await?;

        releases = Some(match releases {
            Some(given) => given
                .into_iter()
                .filter(|release| of_number.contains(release))
                .collect(),
            None => of_number,
        });
    }

    let found = match (releases, track) {
        (None, None) => return Ok(None),
        (Some(releases), _) => {
            store
                .fetch_all(
                    sql::event::FIND_OF_RELEASES,
                    &[user, &releases, track, &below, &MOST_READ, &most],
                )
                .await?
        }
        (None, Some(track)) => {
            store
                .fetch_all(
                    sql::event::FIND_OF_TRACK,
                    &[user, track, &below, &MOST_READ, &most],
                )
                .await?
        }
    };

    Ok(Some(found))
}
