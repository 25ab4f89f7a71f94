//! The daily partitions of events, attempts and missed events: creates them ahead, and drops them
//! when their rows are too old. Rows of a day without a partition are in the default partition until
//! the day gets one.

use std::collections::BTreeSet;

use deadpool_postgres::Transaction;
use jiff::Span;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use uuid::Uuid;

use super::statement::{Statements, from_row};
use super::{Result, Store, StoreError, delivery, hours, lowest_id_at, plan_by_index};
use crate::postgres::{describe, fill};
use crate::sql::store as sql;

/// The most rows that one transaction removes.
const CHUNK: i64 = 10_000;
/// Attaching and dropping a partition takes an exclusive lock for a moment, behind which other
/// sessions queue. It is given up soon if something else holds the table, such as a running
/// `pg_dump`: before Postgres' `deadlock_timeout` of a second, so that a deadlock never fails a
/// replica's transaction.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '500ms'";
/// The number identifies maintenance within the store's database ("partitio" in ASCII).
const TRY_LOCK: &str = "select pg_try_advisory_xact_lock(8097873612312603999)";

/// A partitioned table.
#[derive(Clone, Copy, Debug)]
struct Partitioned {
    name: &'static str,
    /// The column that it is partitioned by, a UUIDv7.
    id: &'static str,
}

const TABLES: [Partitioned; 3] = [
    Partitioned {
        name: "event",
        id: "id",
    },
    Partitioned {
        name: "attempt",
        id: "id",
    },
    Partitioned {
        name: "missed_event",
        id: "event_id",
    },
];

impl Partitioned {
    /// The name of a day's partition. Names sort like their days.
    fn partition(self, day: Date) -> String {
        format!(
            "{}_{:04}{:02}{:02}",
            self.name,
            day.year(),
            day.month(),
            day.day()
        )
    }

    /// The name of the partition for days without one of their own.
    fn default_partition(self) -> String {
        format!("{}_default", self.name)
    }

    fn fill_in(self, template: &str) -> String {
        fill(template, &[("table", self.name), ("id", self.id)])
    }
}

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
enum PartitionChange {
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
    async fn maintain(&mut self, table: Partitioned) -> Result<()> {
        let present = self.store.partitions(table).await?;
        let oldest = table.partition(self.oldest);
        let dated = |name: &&String| name.len() == oldest.len() && !name.ends_with("default");
        for name in present.iter().filter(dated).filter(|name| **name < oldest) {
            if self.change(table, name, PartitionChange::Drop).await? == Changed::Done {
                self.done.dropped.push(name.clone());
            }
        }

        let default = table.default_partition();
        while self
            .change(table, &default, PartitionChange::ExpireDefault)
            .await?
            == Changed::More
        {}

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
    async fn create(&mut self, table: Partitioned, day: Date) -> Result<bool> {
        let name = table.partition(day);
        let changed = self
            .change(table, &name, PartitionChange::Create(day))
            .await?;
        if changed == Changed::Done {
            self.done.created.push(name);
        }

        Ok(changed != Changed::Failed)
    }

    /// Makes a change. If the server rejects it, adds the partition to `waiting` or `failed`.
    /// Returns the error if the connection fails.
    async fn change(
        &mut self,
        table: Partitioned,
        name: &str,
        change: PartitionChange,
    ) -> Result<Changed> {
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

    async fn try_change(
        &self,
        table: Partitioned,
        name: &str,
        change: PartitionChange,
    ) -> Result<Changed> {
        self.store
            .transaction(async |transaction| {
                if !try_lock(transaction).await? {
                    return Ok(Changed::NotNeeded);
                }

                let exists = exists(transaction, name).await?;

                match change {
                    PartitionChange::Create(_) if exists => return Ok(Changed::NotNeeded),
                    PartitionChange::Drop if !exists => return Ok(Changed::NotNeeded),
                    PartitionChange::Create(day) => {
                        create(transaction, table, day, self.today).await?
                    }
                    PartitionChange::Drop => {
                        drop_partition(transaction, table, name, self.lowest).await?
                    }
                    PartitionChange::ExpireDefault => {
                        if expire_default(transaction, table, self.lowest).await? {
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

impl Store {
    /// Returns the tables whose default partition holds rows of days up to `today`: those days have
    /// no partition.
    pub async fn tables_without_partitions(&self, today: Date) -> Result<Vec<&'static str>> {
        let mut found = Vec::new();

        for table in TABLES {
            if self
                .oldest_day_in_default(table, Uuid::nil())
                .await?
                .is_some_and(|day| day <= today)
            {
                found.push(table.name);
            }
        }

        Ok(found)
    }

    /// Returns the names of the table's partitions.
    async fn partitions(&self, table: Partitioned) -> Result<BTreeSet<String>> {
        Ok(self
            .fetch_all(sql::partition::LIST, &[&table.name])
            .await?
            .into_iter()
            .collect())
    }

    /// Returns the day of the lowest id in the table's default partition, not counting ids below
    /// `from`.
    async fn oldest_day_in_default(&self, table: Partitioned, from: Uuid) -> Result<Option<Date>> {
        let id: Option<Uuid> = self
            .fetch_optional(&table.fill_in(sql::partition::DEFAULT_LOWEST), &[&from])
            .await?;
        Ok(id.and_then(day_of))
    }

    /// Cancels the deliveries of events below this id. Returns how many.
    async fn expire_deliveries(&self, lowest: Uuid) -> Result<u64> {
        let mut expired = 0;

        loop {
            let removed = self
                .transaction(async |transaction| expire_deliveries(transaction, lowest).await)
                .await?;
            expired += removed;

            if removed == 0 {
                return Ok(expired);
            }
        }
    }
}

/// Bounds the transaction's waits for locks, and makes it the only one that changes partitions.
/// Returns false if another one does.
async fn try_lock(transaction: &Transaction<'_>) -> Result<bool> {
    transaction.batch_execute(LOCK_TIMEOUT).await?;
    transaction.fetch_one(TRY_LOCK, &[]).await
}

/// Whether the partition exists. Another replica may have created or dropped it since partitions
/// were listed.
async fn exists(transaction: &Transaction<'_>, name: &str) -> Result<bool> {
    let sql = "select to_regclass($1) is not null";
    transaction
        .fetch_one(sql, &[&format!("walhook.{name}")])
        .await
}

/// Creates a day's partition and moves the day's rows out of the default partition. Most rows are
/// moved before the lock, the rest under it.
///
/// A query that waits only for the default partition has been planned without the new one, and
/// would find rows that were moved meanwhile in neither. So where there may be rows to move, the
/// whole table is locked: such a query is planned afterwards.
async fn create(
    transaction: &Transaction<'_>,
    table: Partitioned,
    day: Date,
    today: Date,
) -> Result<()> {
    let name = table.partition(day);
    let from = first_id(day)?;
    let to = first_id(day.tomorrow().map_err(out_of_calendar)?)?;
    let from = from.to_string();
    let to = to.to_string();

    let default = table.default_partition();
    let locked = if day > today { &*default } else { table.name };
    let values = [
        ("table", table.name),
        ("locked", locked),
        ("id", table.id),
        ("name", &*name),
        ("from", &*from),
        ("to", &*to),
    ];

    let lock = "lock table only walhook.{locked} in access exclusive mode";
    for template in [
        sql::partition::MAKE,
        sql::partition::FILL,
        lock,
        sql::partition::FILL,
        sql::partition::ATTACH,
    ] {
        transaction.batch_execute(&fill(template, &values)).await?;
    }

    Ok(())
}

/// Drops a partition, whose rows have ids below `lowest`. First cancels the deliveries of its
/// events.
async fn drop_partition(
    transaction: &Transaction<'_>,
    table: Partitioned,
    name: &str,
    lowest: Uuid,
) -> Result<()> {
    if table.name == "event" {
        // The lock keeps others from creating deliveries of that day's events. Those created so far
        // are cancelled.
        transaction
            .batch_execute(&format!(
                "lock table walhook.{name} in access exclusive mode"
            ))
            .await?;
        while expire_deliveries(transaction, lowest).await? > 0 {}
    }

    Ok(transaction
        .batch_execute(&format!("drop table walhook.{name}"))
        .await?)
}

/// Removes rows below this id from the default partition. Returns whether there may be more.
async fn expire_default(
    transaction: &Transaction<'_>,
    table: Partitioned,
    lowest: Uuid,
) -> Result<bool> {
    let sql = table.fill_in(sql::partition::DEFAULT_EXPIRE);
    Ok(transaction.run(&sql, &[&lowest, &CHUNK]).await? >= CHUNK as u64)
}

/// The deliveries of a webhook that were removed, and how many of them got a row in the attempt
/// log.
struct Expired {
    webhook: Uuid,
    removed: u64,
    logged: u64,
    /// The order keys of those that have one.
    keys: Vec<i64>,
}

from_row!(Expired { webhook = "webhook_id", removed, logged, keys });

/// Cancels and logs a chunk of the deliveries of events below this id. Deliveries that waited for
/// them are due. Returns how many.
async fn expire_deliveries(transaction: &Transaction<'_>, lowest: Uuid) -> Result<u64> {
    plan_by_index(transaction).await?;
    let mut total = 0;
    let mut ended = BTreeSet::new();

    let expired: Vec<Expired> = transaction
        .fetch_all(sql::delivery::EXPIRE, &[&lowest, &CHUNK])
        .await?;

    for Expired {
        webhook,
        removed,
        logged,
        keys,
    } in expired
    {
        hours::add_cancelled(transaction, webhook, logged).await?;
        total += removed;
        ended.extend(keys.into_iter().map(|key| (webhook, key)));
    }

    delivery::promote(transaction, &ended, None).await?;
    Ok(total)
}

/// The lowest UUIDv7 of a day, UTC.
fn first_id(day: Date) -> Result<Uuid> {
    let midnight = day.to_zoned(TimeZone::UTC).map_err(out_of_calendar)?;
    Ok(lowest_id_at(midnight.timestamp().as_millisecond()))
}

/// The day of a UUIDv7. `None` beyond the calendar, as for an id that is no UUIDv7.
fn day_of(id: Uuid) -> Option<Date> {
    let millis = i64::try_from(id.as_u128() >> 80).ok()?;
    let at = jiff::Timestamp::from_millisecond(millis).ok()?;
    Some(at.to_zoned(TimeZone::UTC).date())
}

fn out_of_calendar(error: jiff::Error) -> StoreError {
    StoreError::Corrupt(format!("the clock: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_holds_the_ids_of_its_day() {
        let day: Date = "2026-03-01".parse().unwrap();
        let from = first_id(day).unwrap();
        let to = first_id(day.tomorrow().unwrap()).unwrap();

        let id_at = |at: &str| {
            let at: jiff::Timestamp = at.parse().unwrap();
            Uuid::new_v7(uuid::Timestamp::from_unix(
                uuid::NoContext,
                at.as_second() as u64,
                at.subsec_nanosecond() as u32,
            ))
        };

        for (at, inside) in [
            ("2026-02-28T23:59:59.999Z", false),
            ("2026-03-01T00:00:00Z", true),
            ("2026-03-01T23:59:59.999Z", true),
            ("2026-03-02T00:00:00Z", false),
        ] {
            let id = id_at(at);
            assert_eq!((from..to).contains(&id), inside, "{at}");
            assert_eq!(day_of(id) == Some(day), inside, "{at}");
        }

        assert_eq!(TABLES[0].partition(day), "event_20260301");
    }
}
