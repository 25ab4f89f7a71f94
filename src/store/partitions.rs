//! Daily partitions of events, attempts and missed events: made ahead, dropped when their days are over. Rows of a day without a
//! partition are in the default partition until the day gets one.

use std::collections::BTreeSet;

use deadpool_postgres::Transaction;
use jiff::civil::Date;
use jiff::{Span, tz::TimeZone};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::{Result, Store, StoreError, hours, plan_by_index};

const PARTITION_LIST: &str = include_str!("../../sql/store/partition_list.sql");
const MAKE: &str = include_str!("../../sql/store/partition_make.sql");
const FILL: &str = include_str!("../../sql/store/partition_fill.sql");
const ATTACH: &str = include_str!("../../sql/store/partition_attach.sql");
const DEFAULT_LOWEST: &str = include_str!("../../sql/store/partition_default_lowest.sql");
const DEFAULT_EXPIRE: &str = include_str!("../../sql/store/partition_default_expire.sql");
const DELIVERY_EXPIRE: &str = include_str!("../../sql/store/delivery_expire.sql");
const DAYS_AHEAD: i64 = 3;
/// Rows that one transaction removes at most.
const CHUNK: i64 = 10_000;
/// Attaching and dropping take an exclusive lock for a moment. Other sessions queue behind it, so give way soon, to a
/// running `pg_dump` for instance. Below Postgres' `deadlock_timeout` of a second: it is never a replica at work that fails.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '500ms'";
/// One replica at a time; the number is ours alone within the store ("partitio" in ASCII).
const TRY_LOCK: &str = "select pg_try_advisory_xact_lock(8097873612312603999)";

/// A partitioned table, and the column that it is partitioned by.
#[derive(Clone, Copy)]
struct Table {
    name: &'static str,
    id: &'static str,
}

const TABLES: [Table; 3] = [
    Table { name: "event", id: "id" },
    Table { name: "attempt", id: "id" },
    Table { name: "missed_event", id: "event_id" },
];

/// What a round of maintenance did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    pub created: Vec<String>,
    pub dropped: Vec<String>,
    /// Deliveries that were cancelled because their event became too old.
    pub expired: u64,
    /// Partitions that somebody else's lock kept from being attached or dropped.
    pub waiting: Vec<String>,
    /// Partitions that could not be attached or dropped, and why.
    pub failed: Vec<String>,
}

impl Maintained {
    pub fn is_complete(&self) -> bool {
        self.waiting.is_empty() && self.failed.is_empty()
    }
}

/// One transaction's work.
enum Step<'a> {
    Create(Date),
    /// A partition of events is dropped after the deliveries of the events below this id have ended.
    Drop(&'a str, Uuid),
    /// Removes rows below this id from the default partition.
    Expire(Uuid),
}

/// The result of a maintenance step.
enum Stepped {
    Done,
    /// There was less to do than one transaction may do.
    DoneToTheEnd,
    /// Another replica is at it, or has done it.
    NotNeeded,
    Failed,
}

impl Store {
    /// Makes the partitions of the days around `today`, moves rows out of the default partitions, and removes what is older than
    /// `retention_days`. Each partition has a transaction of its own: one that cannot be made or dropped now hinders no other.
    pub async fn maintain_partitions(&self, today: Date, retention_days: u32) -> Result<Maintained> {
        let mut done = Maintained::default();
        let oldest = shifted(today, -i64::from(retention_days))?;
        done.expired = self.expire_deliveries(first_id(oldest)?).await?;
        for table in TABLES {
            self.maintain_table(table, today, oldest, &mut done).await?;
        }
        Ok(done)
    }

    /// Tables whose default partition holds rows from `oldest` on that belong to days up to now: their days' partitions are missing.
    pub async fn tables_without_partitions(&self, today: Date) -> Result<Vec<&'static str>> {
        let mut found = Vec::new();
        for table in TABLES {
            let lowest = self.lowest_in_default(table, Uuid::nil()).await?;
            if lowest.is_some_and(|day| day <= today) {
                found.push(table.name);
            }
        }
        Ok(found)
    }

    async fn maintain_table(&self, table: Table, today: Date, oldest: Date, done: &mut Maintained) -> Result<()> {
        let present = self.partitions(table).await?;
        let lowest = first_id(oldest)?;
        let oldest_name = partition_name(table.name, oldest);
        let dated = |name: &&String| name.len() == oldest_name.len() && !name.ends_with("default");
        // Names sort as their days do.
        for name in present.iter().filter(dated).filter(|name| **name < oldest_name) {
            if self.step(table, name, Step::Drop(name, lowest), done).await?.is_done() {
                done.dropped.push(name.clone());
            }
        }
        let default = format!("{}_default", table.name);
        while matches!(self.step(table, &default, Step::Expire(lowest), done).await?, Stepped::Done) {}
        for day in -1..=DAYS_AHEAD {
            let day = shifted(today, day)?;
            if !present.contains(&partition_name(table.name, day)) && !self.create(table, day, done).await? {
                return Ok(());
            }
        }
        // Events of a transaction that was read late, or of days on which no maintenance ran.
        let mut from = lowest;
        while let Some(day) = self.lowest_in_default(table, from).await?.filter(|day| *day <= today) {
            if !self.create(table, day, done).await? {
                return Ok(());
            }
            from = first_id(shifted(day, 1)?)?;
        }
        Ok(())
    }

    /// False where it failed: then the table's other days would too.
    async fn create(&self, table: Table, day: Date, done: &mut Maintained) -> Result<bool> {
        let name = partition_name(table.name, day);
        let stepped = self.step(table, &name, Step::Create(day), done).await?;
        if stepped.is_done() {
            done.created.push(name);
        }
        Ok(!matches!(stepped, Stepped::Failed))
    }

    /// One transaction. What the server refuses is noted; a connection that fails is an error.
    async fn step(&self, table: Table, name: &str, step: Step<'_>, done: &mut Maintained) -> Result<Stepped> {
        match self.try_step(table, step).await {
            Err(StoreError::Query(error)) if error.as_db_error().is_some() => {
                match error.code() {
                    Some(&SqlState::LOCK_NOT_AVAILABLE) => done.waiting.push(name.to_owned()),
                    _ => done.failed.push(format!("{name}: {}", crate::postgres::describe(&error))),
                }
                Ok(Stepped::Failed)
            }
            result => result,
        }
    }

    async fn try_step(&self, table: Table, step: Step<'_>) -> Result<Stepped> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        transaction.batch_execute(LOCK_TIMEOUT).await?;
        if !transaction.query_one(TRY_LOCK, &[]).await?.get::<_, bool>(0) {
            return Ok(Stepped::NotNeeded);
        }
        let stepped = match step {
            Step::Create(day) => create(&transaction, table, day).await?,
            Step::Drop(name, lowest) => drop_partition(&transaction, table, name, lowest).await?,
            Step::Expire(lowest) => {
                let removed = transaction.execute(&table.fill_in(DEFAULT_EXPIRE), &[&lowest, &CHUNK]).await?;
                if removed < CHUNK as u64 { Stepped::DoneToTheEnd } else { Stepped::Done }
            }
        };
        transaction.commit().await?;
        Ok(stepped)
    }

    async fn partitions(&self, table: Table) -> Result<BTreeSet<String>> {
        let rows = self.connection().await?.query(PARTITION_LIST, &[&table.name]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// The day of the lowest id in the table's default partition, from `from` on.
    async fn lowest_in_default(&self, table: Table, from: Uuid) -> Result<Option<Date>> {
        let row = self.connection().await?.query_opt(&table.fill_in(DEFAULT_LOWEST), &[&from]).await?;
        Ok(row.and_then(|row| day_of(row.get("id"))))
    }

    /// Ends the deliveries of events below this id.
    async fn expire_deliveries(&self, lowest: Uuid) -> Result<u64> {
        let mut expired = 0;
        loop {
            let mut connection = self.connection().await?;
            let transaction = connection.transaction().await?;
            let removed = expire_deliveries(&transaction, lowest).await?;
            transaction.commit().await?;
            expired += removed;
            if removed == 0 {
                return Ok(expired);
            }
        }
    }
}

impl Stepped {
    fn is_done(&self) -> bool {
        matches!(self, Stepped::Done | Stepped::DoneToTheEnd)
    }
}

impl Table {
    fn fill_in(self, template: &str) -> String {
        template.replace("{table}", self.name).replace("{id}", self.id)
    }
}

/// The day's rows are moved out of the default partition, twice: most of them while everybody can write, the rest under the lock
/// that attaching needs.
async fn create(transaction: &Transaction<'_>, table: Table, day: Date) -> Result<Stepped> {
    let name = partition_name(table.name, day);
    if exists(transaction, &name).await? {
        return Ok(Stepped::NotNeeded);
    }
    let statement = |template: &str| -> Result<String> {
        let (from, to) = (first_id(day)?, first_id(shifted(day, 1)?)?);
        let template = table.fill_in(template).replace("{name}", &name);
        Ok(template.replace("{from}", &from.to_string()).replace("{to}", &to.to_string()))
    };
    transaction.batch_execute(&statement(MAKE)?).await?;
    transaction.batch_execute(&statement(FILL)?).await?;
    transaction.batch_execute(&table.fill_in("lock table walhook.{table}_default in access exclusive mode")).await?;
    transaction.batch_execute(&statement(FILL)?).await?;
    transaction.batch_execute(&statement(ATTACH)?).await?;
    Ok(Stepped::Done)
}

async fn drop_partition(transaction: &Transaction<'_>, table: Table, name: &str, lowest: Uuid) -> Result<Stepped> {
    if !exists(transaction, name).await? {
        return Ok(Stepped::NotNeeded);
    }
    if table.name == "event" {
        // From here on nobody reads an event of that day to make a delivery of it. Those made since the others were ended follow.
        transaction.batch_execute(&format!("lock table walhook.{name} in access exclusive mode")).await?;
        while expire_deliveries(transaction, lowest).await? > 0 {}
    }
    transaction.batch_execute(&format!("drop table walhook.{name}")).await?;
    Ok(Stepped::Done)
}

/// Another replica may have made or dropped it since the partitions were listed.
async fn exists(transaction: &Transaction<'_>, name: &str) -> Result<bool> {
    let row = transaction.query_one("select to_regclass($1) is not null", &[&format!("walhook.{name}")]).await?;
    Ok(row.get(0))
}

/// Ends and logs deliveries of events below this id: a bounded number, which is returned.
async fn expire_deliveries(transaction: &Transaction<'_>, lowest: Uuid) -> Result<u64> {
    plan_by_index(transaction).await?;
    let rows = transaction.query(DELIVERY_EXPIRE, &[&lowest, &CHUNK]).await?;
    let mut removed = 0;
    for row in &rows {
        removed += row.get::<_, i64>("removed") as u64;
        hours::add_cancelled(transaction, row.get("webhook_id"), row.get::<_, i64>("logged") as u64).await?;
    }
    Ok(removed)
}

fn shifted(day: Date, days: i64) -> Result<Date> {
    day.checked_add(Span::new().days(days)).map_err(|error| StoreError::Corrupt(format!("the clock: {error}")))
}

fn partition_name(table: &str, day: Date) -> String {
    format!("{table}_{:04}{:02}{:02}", day.year(), day.month(), day.day())
}

/// The smallest UUIDv7 of a day, UTC, and any smaller than all of them but larger than those of the day before.
fn first_id(day: Date) -> Result<Uuid> {
    let midnight = day.to_zoned(TimeZone::UTC).map_err(|error| StoreError::Corrupt(format!("the clock: {error}")))?;
    let millis = u128::try_from(midnight.timestamp().as_millisecond()).unwrap_or(0);
    Ok(Uuid::from_u128(millis << 80))
}

/// The day that an id's time is in; none beyond the calendar, as of an id that is no UUIDv7.
fn day_of(id: Uuid) -> Option<Date> {
    let millis = i64::try_from(id.as_u128() >> 80).ok()?;
    let at = jiff::Timestamp::from_millisecond(millis).ok()?;
    Some(at.to_zoned(TimeZone::UTC).date())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_days_partition_takes_the_ids_of_that_day() {
        let day: Date = "2026-03-01".parse().unwrap();
        let (from, to) = (first_id(day).unwrap(), first_id(shifted(day, 1).unwrap()).unwrap());
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
        assert_eq!(partition_name("event", day), "event_20260301");
    }
}
