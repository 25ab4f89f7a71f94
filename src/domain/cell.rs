//! Cells: stores that divide the events of a log by the shards of users.

use std::fmt;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::event::UserId;

/// The share of users with the same first 12 bits of the SHA-256 of their ids, in UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shard(pub u16);

impl Shard {
    /// The last shard.
    pub const LAST: Shard = Shard(4_095);

    /// Returns the shard of a user.
    pub fn of(user: &UserId) -> Shard {
        Shard::read(Sha256::digest(&*user.0).into())
    }

    /// Returns the shard in the first 12 bits of a text of 256 bits.
    pub const fn read(bits: [u8; 32]) -> Shard {
        Shard((bits[0] as u16) << 4 | (bits[1] as u16) >> 4)
    }

    /// Replaces the first 12 bits.
    pub const fn write(self, bits: &mut [u8; 32]) {
        bits[0] = (self.0 >> 4) as u8;
        bits[1] = (self.0 << 4) as u8 | bits[1] & 0x0f;
    }
}

/// A range of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    pub first: Shard,
    pub last: Shard,
}

impl Shards {
    pub const ALL: Shards = Shards {
        first: Shard(0),
        last: Shard::LAST,
    };

    /// Returns whether the range has the shard.
    pub fn contains(self, shard: Shard) -> bool {
        (self.first..=self.last).contains(&shard)
    }

    /// Returns whether the two ranges have a shard in common.
    pub fn overlaps(self, other: Shards) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns how often the range fits into all shards.
    pub fn parts(self) -> u64 {
        let count = |shards: Shards| u64::from(shards.last.0 - shards.first.0) + 1;
        count(Shards::ALL) / count(self)
    }

    /// Returns the first and the last shard, as the store has them.
    pub fn bounds(self) -> (i32, i32) {
        (self.first.0.into(), self.last.0.into())
    }

    /// Returns the lower and the upper half. None if there is one shard.
    pub fn halves(self) -> Option<(Shards, Shards)> {
        let Shards { first, last } = self;
        let middle = Shard(first.0.midpoint(last.0));
        let upper = Shard(middle.0 + 1);

        (first < last).then_some((
            Shards {
                first,
                last: middle,
            },
            Shards { first: upper, last },
        ))
    }
}

impl fmt::Display for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first.0, self.last.0)
    }
}

/// A row of the map of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub name: String,
    pub shards: Shards,
    /// The id of its store.
    pub store: Uuid,
    /// Grows with every change of the shards.
    pub epoch: i64,
}

impl Cell {
    /// Checks that the store with this id is the cell's.
    pub fn verify_store(&self, found: Uuid) -> Result<(), CellFault> {
        if self.store == found {
            return Ok(());
        }

        Err(CellFault::OtherStore {
            name: self.name.clone(),
            known: self.store,
            found,
        })
    }
}

/// Why a process may not work on a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CellFault {
    #[error(
        "cells.name is not set, and the events of the log are divided among the cells {0}: set it to the name of this store's cell"
    )]
    Unnamed(String),
    #[error(
        "the store is not cell {0} yet: run `walhook cells add {0}`, or correct cells.name or store.url"
    )]
    NotAdded(String),
    #[error(
        "the store at store.url is cell {found}, and cells.name is {name}: correct one of the two"
    )]
    OtherCell { name: String, found: String },
    #[error(
        "cell {name} has the store {known} and store.url leads to store {found}: correct store.url, or give this cell another name"
    )]
    OtherStore {
        name: String,
        known: Uuid,
        found: Uuid,
    },
    #[error(
        "cell {name} is being split into {into}: continue with `walhook cells split {name} --into {into}`"
    )]
    Splitting { name: String, into: String },
    #[error(
        "the map in the log store has no cell {0}: correct source.log_url or cells.name, or run `walhook cells add {0}`"
    )]
    Unknown(String),
    #[error(
        "cell {name} has the shards {known} of epoch {known_epoch} in the log store, and {found} of epoch {found_epoch} in its own: one \
         of the two was restored or failed over to the state before a split. Run `walhook cells add` with the configuration of each \
         cell: the higher epoch counts"
    )]
    Differs {
        name: String,
        known: Shards,
        known_epoch: i64,
        found: Shards,
        found_epoch: i64,
    },
    #[error(
        "the cells in the log store do not have each shard once, at {0}: run `walhook cells add` with the configuration of each cell"
    )]
    Uncovered(Shard),
    #[error(
        "cell {other} has shards of cell {name} in the log store, in the same epoch or a later one: correct store.url, which leads to \
         another store of this name"
    )]
    Taken { name: String, other: String },
    #[error("the map of cells has changed: the process starts again with the new one")]
    Changed,
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

/// Returns the cell of a process by the rows in its store, which has the id `store`. None if the
/// store is of no cell.
pub fn own(name: Option<&str>, store: Uuid, rows: &[Cell]) -> Result<Option<Cell>, CellFault> {
    let Some(name) = name else {
        return match rows {
            [] => Ok(None),
            rows => Err(CellFault::Unnamed(names(rows))),
        };
    };

    let name = name.to_owned();
    let own = rows.iter().find(|cell| cell.name == name);
    let other = rows.iter().find(|cell| cell.name != name);

    match (own, other) {
        (None, None) => Err(CellFault::NotAdded(name)),
        (None, Some(other)) => Err(CellFault::OtherCell {
            name,
            found: other.name.clone(),
        }),
        (Some(own), _) if rows.iter().all(|row| row.store != store) => Err(CellFault::OtherStore {
            name,
            known: own.store,
            found: store,
        }),
        // The row of the new cell has the id of a store that does not exist yet.
        (Some(own), Some(other)) => Err(match own.store == store {
            true => CellFault::Splitting {
                name,
                into: other.name.clone(),
            },
            false => CellFault::Splitting {
                name: other.name.clone(),
                into: name,
            },
        }),
        (Some(own), None) => Ok(Some(own.clone())),
    }
}

/// Checks a cell, or a store of no cell, against the map in the log store.
pub fn verify(own: Option<&Cell>, map: &[Cell]) -> Result<(), CellFault> {
    let Some(own) = own else {
        return match map {
            [] => Ok(()),
            map => Err(CellFault::Unnamed(names(map))),
        };
    };

    let name = own.name.clone();
    let Some(known) = map.iter().find(|cell| cell.name == name) else {
        return Err(CellFault::Unknown(name));
    };

    known.verify_store(own.store)?;

    if known != own {
        return Err(CellFault::Differs {
            name,
            known: known.shards,
            known_epoch: known.epoch,
            found: own.shards,
            found_epoch: own.epoch,
        });
    }

    covered(map)
}

/// Returns a cell as the map in the log store and its own store should have it: as in the one of the
/// two that was not restored. None if neither has it. `store` is the id of its store.
pub fn latest(
    name: &str,
    store: Uuid,
    own: Option<Cell>,
    map: &[Cell],
) -> Result<Option<Cell>, CellFault> {
    let known = map.iter().find(|cell| cell.name == name).cloned();
    if let Some(known) = &known {
        known.verify_store(store)?;
    }

    let latest = own.into_iter().chain(known).max_by_key(|cell| cell.epoch);
    let Some(cell) = latest else { return Ok(None) };

    let is_later = |other: &&Cell| {
        other.name != name && other.shards.overlaps(cell.shards) && other.epoch >= cell.epoch
    };
    match map.iter().find(is_later) {
        None => Ok(Some(cell)),
        Some(other) => Err(CellFault::Taken {
            name: cell.name,
            other: other.name.clone(),
        }),
    }
}

/// Checks that each shard is in one cell. `map` is in the order of the shards.
pub fn covered(map: &[Cell]) -> Result<(), CellFault> {
    let mut next = 0;

    for cell in map {
        if cell.shards.first.0 != next {
            return Err(CellFault::Uncovered(Shard(next.min(cell.shards.first.0))));
        }

        next = cell.shards.last.0 + 1;
    }

    match next > Shard::LAST.0 {
        true => Ok(()),
        false => Err(CellFault::Uncovered(Shard(next))),
    }
}

fn names(cells: &[Cell]) -> String {
    let names: Vec<&str> = cells.iter().map(|cell| &*cell.name).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(name: &str, first: u16, last: u16) -> Cell {
        Cell {
            name: name.to_owned(),
            shards: Shards {
                first: Shard(first),
                last: Shard(last),
            },
            store: Uuid::new_v5(&Uuid::NAMESPACE_OID, name.as_bytes()),
            epoch: 1,
        }
    }

    #[test]
    fn a_shard_is_the_first_twelve_bits_of_the_hash() {
        // printf 1 | sha256sum: 6b86b273…
        let shard = Shard::of(&UserId("1".into()));
        assert_eq!(shard, Shard(0x6b8));

        let mut bits = [0xff; 32];
        shard.write(&mut bits);
        assert_eq!((Shard::read(bits), bits[1] & 0x0f), (shard, 0x0f));
    }

    #[test]
    fn halves_are_adjacent_and_one_shard_has_none() {
        let (lower, upper) = Shards::ALL.halves().unwrap();
        assert_eq!((lower.last, upper.first), (Shard(2_047), Shard(2_048)));
        let (lower, upper) = cell("a", 7, 8).shards.halves().unwrap();
        assert_eq!(
            (lower.to_string(), upper.to_string()),
            ("7-7".into(), "8-8".into())
        );
        assert_eq!(lower.halves(), None);
        assert_eq!((Shards::ALL.parts(), lower.parts()), (1, 4_096));
    }

    #[test]
    fn a_map_has_each_shard_once() {
        let of = |cells: &[(u16, u16)]| {
            let cells: Vec<Cell> = cells
                .iter()
                .map(|(first, last)| cell("a", *first, *last))
                .collect();
            covered(&cells)
        };
        let missing = |shard| Err(CellFault::Uncovered(Shard(shard)));

        assert_eq!(of(&[(0, 99), (100, 4_095)]), Ok(()));
        assert_eq!(of(&[(0, 99), (101, 4_095)]), missing(100));
        assert_eq!(of(&[(0, 99), (99, 4_095)]), missing(99));
        assert_eq!(of(&[(1, 4_095)]), missing(0));
        assert_eq!(of(&[(0, 4_094)]), missing(4_095));
    }

    #[test]
    fn a_store_is_the_cell_of_its_one_row_and_its_id() {
        let whole = cell("a", 0, 4_095);
        let rows = std::slice::from_ref(&whole);
        assert_eq!(own(Some("a"), whole.store, rows), Ok(Some(whole.clone())));
        assert_eq!(own(None, whole.store, &[]), Ok(None));
        assert_eq!(verify(Some(&whole), rows), Ok(()));
        assert!(matches!(
            own(None, whole.store, rows),
            Err(CellFault::Unnamed(_))
        ));
        assert!(matches!(
            own(Some("a"), Uuid::nil(), rows),
            Err(CellFault::OtherStore { .. })
        ));
        assert!(matches!(
            own(Some("b"), whole.store, rows),
            Err(CellFault::OtherCell { .. })
        ));

        // Both halves name the split in the same way: the clone has the id of the original.
        let halves = [cell("a", 0, 2_047), cell("b", 2_048, 4_095)];
        let splitting = Err(CellFault::Splitting {
            name: "a".into(),
            into: "b".into(),
        });
        assert_eq!(own(Some("a"), whole.store, &halves), splitting);
        assert_eq!(own(Some("b"), whole.store, &halves), splitting);

        // The log's store has the rows of all cells, and another id.
        assert!(matches!(
            own(Some("a"), Uuid::nil(), &halves),
            Err(CellFault::OtherStore { .. })
        ));
    }
}
