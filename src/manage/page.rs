//! Pages of lists, and the cursors that continue them.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use uuid::Uuid;

/// The end of a page: the next one starts after the row with this id. Its text is the base64 of the id's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor(pub Uuid);

/// The error of a text that is not a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the `next_cursor` of an earlier response")]
pub struct MalformedCursor;

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.0.as_bytes()))
    }
}

impl FromStr for Cursor {
    type Err = MalformedCursor;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok().and_then(|bytes| bytes.try_into().ok());
        bytes.map(|bytes| Cursor(Uuid::from_bytes(bytes))).ok_or(MalformedCursor)
    }
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// None on the last page.
    pub next: Option<Cursor>,
}

impl<T> Page<T> {
    /// Makes a page of the first `limit` rows. The query fetches one row more, which shows whether there is a next page.
    pub(super) fn new(mut rows: Vec<T>, limit: usize, id: impl Fn(&T) -> Uuid) -> Page<T> {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|row| Cursor(id(row)));
        Page { items: rows, next }
    }

    /// Lets the next page start after `horizon`, the last row that was examined, if the search stopped early and found no more rows.
    pub(super) fn or_continue_after(self, horizon: Option<Uuid>) -> Page<T> {
        Page { next: self.next.or(horizon.map(Cursor)), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_the_last_row_of_its_page() {
        let ids: Vec<Uuid> = (1..=3).map(Uuid::from_u128).collect();
        let page = Page::new(ids.clone(), 2, |id| *id);
        assert_eq!(page.items, ids[..2]);
        assert_eq!(page.next.unwrap().to_string().parse(), Ok(Cursor(ids[1])));
        assert_eq!(Page::new(ids, 3, |id| *id).next, None);
        assert_eq!("x".parse::<Cursor>(), Err(MalformedCursor));
    }
}
