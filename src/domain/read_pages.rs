//! The pages of the outbox that were read last. They are stored with the checkpoint: after a
//! failover, whichever process reads the outbox compares them with the rows that the new primary
//! has not deleted.

use super::window::Snapshot;

/// The most pages that are remembered. About ten are read and not deleted while the store is slow:
/// four wait for enqueue, as many are being stored. The others are for deletions that a standby has
/// not received.
const MAX_PAGES: usize = 16;

/// A page of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPage {
    /// The number of its window.
    pub window: u64,
    /// The snapshot at which the window ends.
    pub to: Snapshot,
    /// The rows after this one, up to `last`.
    pub after: u64,
    pub last: u64,
    pub contents: Contents,
}

/// Identifies the rows of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub rows: u64,
    /// The sum of the times at which the rows were written, in microseconds: other rows with the
    /// same numbers have other times.
    pub times: i128,
}

/// The pages that were read last, in the order in which they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPages {
    /// Pages of windows up to this one are not remembered, or not all of them.
    forgotten: u64,
    pages: Vec<ReadPage>,
}

/// The stored form: `forgotten`, and the pages.
type Stored<'a> = (u64, Vec<(u64, &'a str, u64, u64, u64, i128)>);

impl ReadPages {
    /// Creates the list of a new outbox, of which no page has been read.
    pub const fn of_new_outbox() -> ReadPages {
        ReadPages::after_window(0)
    }

    /// Creates a list without pages, after a window.
    pub const fn after_window(window: u64) -> ReadPages {
        ReadPages {
            forgotten: window,
            pages: Vec::new(),
        }
    }

    /// Returns the list with one more page.
    #[must_use]
    pub fn with(&self, page: ReadPage) -> ReadPages {
        let excess = (self.pages.len() + 1).saturating_sub(MAX_PAGES);
        let (forgotten, kept) = self.pages.split_at(excess);
        ReadPages {
            forgotten: forgotten.last().map_or(self.forgotten, |page| page.window),
            pages: kept.iter().cloned().chain([page]).collect(),
        }
    }

    /// Returns the pages after a row of a window. None if some of them may have been forgotten.
    pub fn after(&self, window: u64, row: u64) -> Option<impl Iterator<Item = &ReadPage>> {
        let is_after = move |page: &&ReadPage| (page.window, page.last) > (window, row);
        (window >= self.forgotten).then(|| self.pages.iter().filter(is_after))
    }

    /// Returns the text to store with the checkpoint.
    pub fn to_text(&self) -> String {
        let pages = self.pages.iter().map(|page| {
            let Contents { rows, times } = page.contents;
            (
                page.window,
                page.to.as_str(),
                page.after,
                page.last,
                rows,
                times,
            )
        });

        let stored: Stored<'_> = (self.forgotten, pages.collect());
        serde_json::to_string(&stored).expect("numbers and texts are JSON")
    }

    /// Reads the stored text.
    pub fn from_text(text: &str) -> Result<ReadPages, serde_json::Error> {
        let (forgotten, pages): Stored<'_> = serde_json::from_str(text)?;
        let pages = pages
            .into_iter()
            .map(|(window, to, after, last, rows, times)| ReadPage {
                window,
                to: to.into(),
                after,
                last,
                contents: Contents { rows, times },
            });

        Ok(ReadPages {
            forgotten,
            pages: pages.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(window: u64, last: u64) -> ReadPage {
        let contents = Contents {
            rows: 2,
            times: 1_800_000_000_000_000 + i128::from(last),
        };

        ReadPage {
            window,
            to: "10:20:12".into(),
            after: last - 2,
            last,
            contents,
        }
    }

    fn after(pages: &ReadPages, window: u64, row: u64) -> Option<Vec<(u64, u64)>> {
        Some(
            pages
                .after(window, row)?
                .map(|page| (page.window, page.last))
                .collect(),
        )
    }

    #[test]
    fn pages_after_a_row_of_a_window_are_known_from_the_first_window_on() {
        let pages = ReadPages::after_window(7)
            .with(page(8, 4))
            .with(page(8, 6))
            .with(page(9, 5));
        assert_eq!(after(&pages, 7, 90), Some(vec![(8, 4), (8, 6), (9, 5)]));
        assert_eq!(after(&pages, 8, 4), Some(vec![(8, 6), (9, 5)]));
        assert_eq!(after(&pages, 9, 5), Some(vec![]));
        assert_eq!(after(&pages, 6, 90), None);
    }

    #[test]
    fn a_window_of_which_a_page_was_forgotten_is_not_known() {
        let all = (1..=MAX_PAGES as u64 + 3).fold(ReadPages::after_window(0), |pages, number| {
            pages.with(page(number.div_ceil(2), 10 * number))
        });

        assert_eq!(
            after(&all, 2, 40).map(|pages| pages.len()),
            Some(MAX_PAGES - 1),
            "one of window 2 is left"
        );
        assert_eq!(after(&all, 1, 90), None);
    }

    #[test]
    fn the_stored_text_is_read_as_it_was_written() {
        let pages = ReadPages::after_window(7).with(page(8, 4)).with(page(9, 5));
        assert_eq!(ReadPages::from_text(&pages.to_text()).unwrap(), pages);
    }
}
