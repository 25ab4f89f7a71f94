//! Pages of lists, and the cursors that continue them.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A list that has pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    Webhooks,
    /// The delivery log of a webhook.
    Log(Uuid),
    /// The delivery logs of all webhooks.
    AllLogs,
    /// The jobs of a webhook.
    Jobs(Uuid),
    Tokens,
    Audit,
}

impl List {
    /// A mark in the list's cursors, by which the cursors of other lists are rejected.
    fn mark(self) -> [u8; 5] {
        let (name, webhook) = match self {
            List::Webhooks => ("webhooks", Uuid::nil()),
            List::Log(webhook) => ("log", webhook),
            List::AllLogs => ("logs", Uuid::nil()),
            List::Jobs(webhook) => ("jobs", webhook),
            List::Tokens => ("tokens", Uuid::nil()),
            List::Audit => ("audit", Uuid::nil()),
        };

        let digest = Sha256::new()
            .chain_update(name)
            .chain_update(webhook)
            .finalize();
        digest
            .first_chunk()
            .copied()
            .expect("a digest has 32 bytes")
    }
}

/// The end of a page: the next one starts after the row with this id. Its text is the base64 of the
/// id's bytes and the list's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    list: List,
    pub(super) id: Uuid,
}

/// The error of a text that is not a cursor of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the `next_cursor` of an earlier page of this list")]
pub struct MalformedCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode([self.id.as_bytes(), &self.list.mark()[..]].concat()))
    }
}

impl Cursor {
    /// The highest id before that of the cursor, where a list goes from high to low.
    pub(super) fn before(self) -> Uuid {
        Uuid::from_u128(self.id.as_u128().saturating_sub(1))
    }

    /// The time of the row.
    pub fn time(self) -> Timestamp {
        let millis = i64::try_from(self.id.as_u128() >> 80).unwrap_or(i64::MAX);
        Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
    }

    /// Parses a cursor of this list.
    pub fn parse(list: List, text: &str) -> Result<Cursor, MalformedCursor> {
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| MalformedCursor)?;
        let (id, mark) = bytes.split_first_chunk().ok_or(MalformedCursor)?;
        if mark == list.mark() {
            Ok(Cursor {
                list,
                id: Uuid::from_bytes(*id),
            })
        } else {
            Err(MalformedCursor)
        }
    }
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct ListPage<T> {
    list: List,
    pub items: Vec<T>,
    /// None on the last page.
    pub next: Option<Cursor>,
    /// Whether a search stopped early: there may be more rows that match before those of the next
    /// page.
    pub is_partial: bool,
}

impl<T> ListPage<T> {
    /// Makes a page of the first `limit` rows. The query fetches one row more, which shows whether
    /// there is a next page.
    pub(super) fn new(
        list: List,
        mut rows: Vec<T>,
        limit: usize,
        id: impl Fn(&T) -> Uuid,
    ) -> ListPage<T> {
        let more = rows.len() > limit;
        rows.truncate(limit);

        let next = rows
            .last()
            .filter(|_| more)
            .map(|row| Cursor { list, id: id(row) });
        ListPage {
            list,
            items: rows,
            next,
            is_partial: false,
        }
    }

    /// Converts the rows.
    pub fn map<U>(self, convert: impl FnMut(T) -> U) -> ListPage<U> {
        ListPage {
            list: self.list,
            items: self.items.into_iter().map(convert).collect(),
            next: self.next,
            is_partial: self.is_partial,
        }
    }

    /// Lets the next page start after `horizon`, the last row that was examined, if the search
    /// stopped early and found no more rows.
    pub(super) fn or_continue_after(self, horizon: Option<Uuid>) -> ListPage<T> {
        let list = self.list;
        ListPage {
            is_partial: self.next.is_none() && horizon.is_some(),
            next: self.next.or(horizon.map(|id| Cursor { list, id })),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_the_last_row_of_its_page() {
        let ids: Vec<Uuid> = (1..=3).map(Uuid::from_u128).collect();
        let list = List::Log(Uuid::from_u128(7));
        let page = ListPage::new(list, ids.clone(), 2, |id| *id);

        assert_eq!(page.items, ids[..2]);
        let text = page.next.unwrap().to_string();

        assert_eq!(
            Cursor::parse(list, &text).map(|cursor| cursor.id),
            Ok(ids[1])
        );

        for other in [
            List::Webhooks,
            List::Log(Uuid::from_u128(8)),
            List::Jobs(Uuid::from_u128(7)),
            List::AllLogs,
        ] {
            assert_eq!(
                Cursor::parse(other, &text),
                Err(MalformedCursor),
                "{other:?}"
            );
        }

        assert_eq!(ListPage::new(list, ids, 3, |id| *id).next, None);

        for malformed in ["", "x", &text[..27], &text[..22]] {
            assert_eq!(
                Cursor::parse(list, malformed),
                Err(MalformedCursor),
                "{malformed}"
            );
        }
    }
}
