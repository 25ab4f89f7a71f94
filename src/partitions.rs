//! Maintains the daily partitions: creates them ahead, and drops them when their rows are too old.
//! Rows of a day without a partition are in the default partition until the day gets one.

use jiff::Span;
use jiff::civil::Date;
use uuid::Uuid;

use crate::postgres::describe;
use crate::store::partitions::{self, TABLES, Table, first_id};
use crate::store::{Result, Store, StoreError};

/// How many days before they are needed partitions are created: maintenance may fail for that long.
const DAYS_AHEAD: i64 = 3;

/// The result of a round of maintenance.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    pub created: Vec<String>,
    pub dropped: Vec<String>,
    /// Deliveries that were cancelled because their events became too old.
    pub expired: u64,
    /// Partitions that could not be attached or dropped because another session holds a lock.
    pub waiting: Vec<String>,
    /// Partitions that could not be attached or dropped for another reason, and the reasons.
    pub failed: Vec<String>,
}

impl Maintained {
    pub fn is_complete(&self) -> bool {
        self.waiting.is_empty() && self.failed.is_empty()
    }
}

/// A change of a partition. Each is one transaction.
#[derive(Clone, Copy)]
enum Change {
    Create(Date),
    Drop,
    /// Removes old rows from the default partition.
    ExpireDefault,
}

/// The result of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Changed {
    Done,
    /// One transaction was not enough.
    More,
    /// Another replica is making the change, or has made it.
    NotNeeded,
    Failed,
}

/// A round of maintenance.
struct Round<'a> {
    store: &'a Store,
    today: Date,
    /// The oldest day to keep.
    oldest: Date,
    /// The lowest id to keep.
    lowest: Uuid,
    done: Maintained,
}

/// Creates the partitions of the days around `today`, moves rows out of the default partitions, and
/// removes rows older than `retention_days`. Each partition has its own transaction: a failure does
/// not affect the others.
pub async fn maintain(store: &Store, today: Date, retention_days: u32) -> Result<Maintained> {
    let oldest = shifted(today, -i64::from(retention_days))?;
    let lowest = first_id(oldest)?;
    let expired = store.expire_deliveries(lowest).await?;

    let mut round = Round {
        store,
        today,
        oldest,
        lowest,
        done: Maintained {
            expired,
            ..Maintained::default()
        },
    };

    for table in TABLES {
        round.maintain(table).await?;
    }

    Ok(round.done)
}

impl Round<'_> {
    async fn maintain(&mut self, table: Table) -> Result<()> {
        let present = self.store.partitions(table).await?;
        let oldest = table.partition(self.oldest);
        let dated = |name: &&String| name.len() == oldest.len() && !name.ends_with("default");
        for name in present.iter().filter(dated).filter(|name| **name < oldest) {
            if self.change(table, name, Change::Drop).await? == Changed::Done {
                self.done.dropped.push(name.clone());
            }
        }

        let default = format!("{}_default", table.name);
        while self.change(table, &default, Change::ExpireDefault).await? == Changed::More {}

        for day in -1..=DAYS_AHEAD {
            let day = shifted(self.today, day)?;
            if !present.contains(&table.partition(day)) && !self.create(table, day).await? {
                return Ok(());
            }
        }

        // Days whose transactions were read late, or on which no maintenance ran.
        let mut from = self.lowest;
        while let Some(day) = self
            .store
            .oldest_day_in_default(table, from)
            .await?
            .filter(|day| *day <= self.today)
        {
            if !self.create(table, day).await? {
                return Ok(());
            }

            from = first_id(shifted(day, 1)?)?;
        }

        Ok(())
    }

    /// Creates a day's partition. Returns false if that failed: the table's other days would fail
    /// too.
    async fn create(&mut self, table: Table, day: Date) -> Result<bool> {
        let name = table.partition(day);
        let changed = self.change(table, &name, Change::Create(day)).await?;
        if changed == Changed::Done {
            self.done.created.push(name);
        }

        Ok(changed != Changed::Failed)
    }

    /// Makes a change. If the server rejects it, adds the partition to `waiting` or `failed`.
    /// Returns the error if the connection fails.
    async fn change(&mut self, table: Table, name: &str, change: Change) -> Result<Changed> {
        match self.try_change(table, name, change).await {
            Err(error) if error.is_lock_timeout() => self.done.waiting.push(name.to_owned()),
            Err(StoreError::Query(error)) if error.as_db_error().is_some() => {
                self.done
                    .failed
                    .push(format!("{name}: {}", describe(&error)));
            }
            result => return result,
        }

        Ok(Changed::Failed)
    }

    async fn try_change(&self, table: Table, name: &str, change: Change) -> Result<Changed> {
        self.store
            .transaction(async |transaction| {
                if !partitions::try_lock(transaction).await? {
                    return Ok(Changed::NotNeeded);
                }

                let exists = partitions::exists(transaction, name).await?;

                match change {
                    Change::Create(_) if exists => return Ok(Changed::NotNeeded),
                    Change::Drop if !exists => return Ok(Changed::NotNeeded),
                    Change::Create(day) => partitions::create(transaction, table, day).await?,
                    Change::Drop => {
                        partitions::drop_partition(transaction, table, name, self.lowest).await?
                    }
                    Change::ExpireDefault => {
                        if partitions::expire_default(transaction, table, self.lowest).await? {
                            return Ok(Changed::More);
                        }
                    }
                }

                Ok(Changed::Done)
            })
            .await
    }
}

fn shifted(day: Date, days: i64) -> Result<Date> {
    day.checked_add(Span::new().days(days))
        .map_err(|error| StoreError::Corrupt(format!("the clock: {error}")))
}
