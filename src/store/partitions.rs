//! Daily partitions of events, attempts and missed events: made ahead, dropped when their days are over.

use std::collections::HashSet;

use jiff::civil::Date;
use jiff::{Span, tz::TimeZone};
use uuid::Uuid;

use super::{Result, Store, StoreError};

const PARTITION_LIST: &str = include_str!("../../sql/store/partition_list.sql");
const PARTITION_CREATE: &str = include_str!("../../sql/store/partition_create.sql");
const PARTITIONED: [&str; 3] = ["event", "attempt", "missed_event"];
const DAYS_AHEAD: i64 = 3;
/// Dropping needs the table to itself for a moment: rather try again in an hour than hold up deliveries.
const SESSION: &str = "set local lock_timeout = '2s'";
/// One replica at a time; the number is ours alone within the store ("partitio" in ASCII).
const TRY_LOCK: &str = "select pg_try_advisory_xact_lock(8097873612312603999)";

/// What a round of maintenance did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    pub created: Vec<String>,
    pub dropped: Vec<String>,
}

impl Store {
    /// Makes the partitions of the days around `today` and drops those older than `retention_days`.
    pub async fn maintain_partitions(&self, today: Date, retention_days: u32) -> Result<Maintained> {
        let mut connection = self.connection().await?;
        let transaction = connection.transaction().await?;
        transaction.batch_execute(SESSION).await?;
        let mut done = Maintained::default();
        if !transaction.query_one(TRY_LOCK, &[]).await?.get::<_, bool>(0) {
            return Ok(done);
        }
        for table in PARTITIONED {
            let rows = transaction.query(PARTITION_LIST, &[&table]).await?;
            let present: HashSet<String> = rows.iter().map(|row| row.get(0)).collect();
            for day in -1..=DAYS_AHEAD {
                let day = shifted(today, day)?;
                let name = partition_name(table, day);
                if !present.contains(&name) {
                    transaction.batch_execute(&create_statement(table, day)?).await?;
                    done.created.push(name);
                }
            }
            let oldest = partition_name(table, shifted(today, -i64::from(retention_days))?);
            let dated = |name: &&String| name.len() == oldest.len() && !name.ends_with("default");
            // Names sort as their days do.
            for name in present.iter().filter(dated).filter(|name| **name < oldest) {
                transaction.batch_execute(&format!("drop table walhook.{name}")).await?;
                done.dropped.push(name.clone());
            }
        }
        transaction.commit().await?;
        Ok(done)
    }
}

fn shifted(day: Date, days: i64) -> Result<Date> {
    day.checked_add(Span::new().days(days)).map_err(|error| StoreError::Corrupt(format!("the clock: {error}")))
}

fn partition_name(table: &str, day: Date) -> String {
    format!("{table}_{:04}{:02}{:02}", day.year(), day.month(), day.day())
}

fn create_statement(table: &str, day: Date) -> Result<String> {
    Ok(PARTITION_CREATE
        .replace("{name}", &partition_name(table, day))
        .replace("{table}", table)
        .replace("{from}", &first_id(day)?.to_string())
        .replace("{to}", &first_id(shifted(day, 1)?)?.to_string()))
}

/// The smallest UUIDv7 of a day, UTC, and any smaller than all of them but larger than those of the day before.
fn first_id(day: Date) -> Result<Uuid> {
    let midnight = day.to_zoned(TimeZone::UTC).map_err(|error| StoreError::Corrupt(format!("the clock: {error}")))?;
    let millis = u128::try_from(midnight.timestamp().as_millisecond()).unwrap_or(0);
    Ok(Uuid::from_u128(millis << 80))
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
        }
        assert_eq!(partition_name("event", day), "event_20260301");
    }
}
