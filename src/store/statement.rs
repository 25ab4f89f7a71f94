//! Runs statements, and converts between their rows and parameters and Rust types.
//!
//! A statement is a constant of `crate::sql::store`, prepared once per connection. [`from_row!`] lists the
//! columns that a struct is read from, by name; [`arrays!`] turns a slice into the parallel arrays
//! that `unnest` takes. Statements that are run concurrently on one connection are pipelined:
//! nothing here waits between preparing, which the cache answers, and sending.
//!
//! Why not generated code: `clorinde` 2.0 was tried on the table `notice`. It keeps statements
//! prepared once (by deadpool's cache) and pipelined. But it generates 90 lines per statement
//! (13,000 for all of them), which either live in the repository or make every build need a
//! migrated Postgres. It takes columns for not null unless an annotation says otherwise. Templates
//! and batches stay outside. Its rows hold plain text and numbers, so the conversion to domain
//! types, which this module shortens, would remain. Of the derives for rows, `postgres-from-row`
//! had its last release in May 2023.

use std::error::Error;

use deadpool_postgres::GenericClient;
use futures_util::{Stream, TryStreamExt};
use jiff::Timestamp;
use postgres_types::private::BytesMut;
use postgres_types::{FromSqlOwned, IsNull, Json, PgLsn, ToSql, Type, to_sql_checked};
use tokio_postgres::Row;
use uuid::Uuid;

use super::{Result, Store, StoreError, plan_by_index};
use crate::domain::about::About;
use crate::domain::event::UserId;
use crate::domain::lsn::Lsn;
use crate::domain::ordering::Ordering;
use crate::domain::publication::PublicationMembers;
use crate::domain::scope::Scope;
use crate::domain::settings::Settings;
use crate::domain::subject::EventFilter;
use crate::postgres::DiskFault;
use crate::telemetry::count_disk_fault;

/// A statement's parameters, `$1` first.
pub type Params<'a> = [&'a (dyn ToSql + Sync)];

/// Runs statements on a connection, in a transaction, or on a connection that the store borrows for
/// one statement.
pub trait Statements: Sync {
    /// Runs a statement and returns how many rows it affected.
    fn run(&self, sql: &str, params: &Params<'_>) -> impl Future<Output = Result<u64>> + Send;

    fn fetch_rows(
        &self,
        sql: &str,
        params: &Params<'_>,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send;

    fn fetch_all<T: FromRow>(
        &self,
        sql: &str,
        params: &Params<'_>,
    ) -> impl Future<Output = Result<Vec<T>>> + Send {
        async move {
            let rows = self.fetch_rows(sql, params).await?;
            rows.iter().map(T::from_row).collect()
        }
    }

    /// Fetches the first row.
    fn fetch_optional<T: FromRow>(
        &self,
        sql: &str,
        params: &Params<'_>,
    ) -> impl Future<Output = Result<Option<T>>> + Send {
        async move {
            let rows = self.fetch_rows(sql, params).await?;
            rows.first().map(T::from_row).transpose()
        }
    }

    /// Like `fetch_optional`, for statements that always return a row.
    fn fetch_one<T: FromRow>(
        &self,
        sql: &str,
        params: &Params<'_>,
    ) -> impl Future<Output = Result<T>> + Send {
        async move {
            let row = self.fetch_optional(sql, params).await?;
            row.ok_or_else(|| StoreError::Corrupt("a statement returned no row".to_owned()))
        }
    }
}

impl<C: GenericClient> Statements for C {
    async fn run(&self, sql: &str, params: &Params<'_>) -> Result<u64> {
        let statement = self.prepare_cached(sql).await.map_err(failed)?;
        self.execute(&statement, params).await.map_err(failed)
    }

    async fn fetch_rows(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>> {
        let statement = self.prepare_cached(sql).await.map_err(failed)?;
        self.query(&statement, params).await.map_err(failed)
    }
}

/// Runs a statement, and returns its rows one by one: those that the caller does not need do not
/// stay in memory.
pub async fn stream_rows<C: GenericClient>(
    client: &C,
    sql: &str,
    params: &Params<'_>,
) -> Result<impl Stream<Item = Result<Row>> + use<C>> {
    let statement = client.prepare_cached(sql).await.map_err(failed)?;
    let rows = client
        .query_raw(&statement, params.iter().copied())
        .await
        .map_err(failed)?;

    Ok(rows.map_err(failed))
}

/// Within the store's time limit.
impl Statements for Store {
    async fn run(&self, sql: &str, params: &Params<'_>) -> Result<u64> {
        self.statement(async { self.connection().await?.run(sql, params).await })
            .await
    }

    async fn fetch_rows(&self, sql: &str, params: &Params<'_>) -> Result<Vec<Row>> {
        self.statement(async { self.connection().await?.fetch_rows(sql, params).await })
            .await
    }
}

impl Store {
    /// Like `fetch_one`, for statements that read pending deliveries or webhooks in the order of an
    /// index.
    pub(super) async fn fetch_by_index<T: FromRow>(
        &self,
        sql: &str,
        params: &Params<'_>,
    ) -> Result<T> {
        self.transaction(async |transaction| {
            plan_by_index(transaction).await?;
            transaction.fetch_one(sql, params).await
        })
        .await
    }
}

/// Counts a fault of the store's disk.
fn failed(error: tokio_postgres::Error) -> StoreError {
    if let Some(fault) = DiskFault::of(&error) {
        count_disk_fault("store", fault.as_str());
    }

    StoreError::Query(error)
}

/// A type that a row is read as: a struct with [`from_row!`], or the value of a row's only column,
/// or a pair of its two.
pub trait FromRow: Sized + Send {
    fn from_row(row: &Row) -> Result<Self>;
}

impl<T: ColumnValue + Send> FromRow for T {
    fn from_row(row: &Row) -> Result<Self> {
        column_at(row, 0)
    }
}

impl<A: ColumnValue + Send, B: ColumnValue + Send> FromRow for (A, B) {
    fn from_row(row: &Row) -> Result<Self> {
        Ok((column_at(row, 0)?, column_at(row, 1)?))
    }
}

/// A type that a column is read as: a type of `postgres-types`, or one that is converted from such
/// a type.
pub trait ColumnValue: Sized {
    type Stored: FromSqlOwned;

    /// Returns the value, or a description of why the stored value is invalid.
    fn from_stored(stored: Self::Stored) -> Result<Self, String>;
}

pub fn column<T: ColumnValue>(row: &Row, name: &str) -> Result<T> {
    T::from_stored(row.try_get(name)?)
        .map_err(|problem| StoreError::Corrupt(format!("{name}: {problem}")))
}

fn column_at<T: ColumnValue>(row: &Row, index: usize) -> Result<T> {
    let name = row.columns().get(index).map_or("", |column| column.name());
    T::from_stored(row.try_get(index)?)
        .map_err(|problem| StoreError::Corrupt(format!("{name}: {problem}")))
}

macro_rules! columns {
    ($($type:ty = $stored:ty: |$value:ident| $convert:expr),+ $(,)?) => { $(
        impl ColumnValue for $type {
            type Stored = $stored;

            fn from_stored($value: $stored) -> Result<Self, String> {
                $convert
            }
        }
    )+ };
    ($($type:ty),+ $(,)?) => { columns! { $($type = $type: |value| Ok(value)),+ } };
}

columns! { bool, i16, i32, i64, f64, String, Uuid, Timestamp, Vec<u8>, Vec<i16>, Vec<i32>, Vec<i64>, Vec<Option<i64>>, Vec<Option<String>>, Vec<String>, Vec<Uuid> }
// `u32` is an `integer`, not an `oid`.
columns! {
    u16 = i16: |number| u16::try_from(number).map_err(|_| format!("{number} is negative")),
    u32 = i32: |number| u32::try_from(number).map_err(|_| format!("{number} is negative")),
    u64 = i64: |number| u64::try_from(number).map_err(|_| format!("{number} is negative")),
    Lsn = PgLsn: |lsn| Ok(Lsn(lsn.into())),
    UserId = String: |user| Ok(UserId(user.into())),
    // A later build may know more. What this one does not know allows nothing but reading.
    Scope = String: |name| Ok(name.parse().unwrap_or(Scope::ReadOnly)),
    // A later build may know more.
    Ordering = String: |name| Ok(name.parse().unwrap_or(Ordering::None)),
    PublicationMembers = Json<PublicationMembers>: |stored| Ok(stored.0),
    Settings = Json<Settings>: |stored| Ok(stored.0),
    EventFilter = Json<EventFilter>: |stored| Ok(stored.0),
    About = Vec<Option<String>>: |fields| Ok(About::new(fields)),
}

impl<T: ColumnValue> ColumnValue for Option<T> {
    type Stored = Option<T::Stored>;

    fn from_stored(stored: Self::Stored) -> Result<Self, String> {
        stored.map(T::from_stored).transpose()
    }
}

/// Implements [`FromRow`] for a struct: `field` is read from the column of that name, `field =
/// "column"` from another, and `field: function` by a function of the row, such as another struct's
/// `from_row`.
macro_rules! from_row {
    ($type:ty { $($field:ident $(= $column:literal)? $(: $read:expr)?),+ $(,)? }) => {
        impl $crate::store::statement::FromRow for $type {
            fn from_row(row: &tokio_postgres::Row) -> $crate::store::Result<Self> {
                Ok(Self { $($field: from_row!(@field row $field $($column)? $(: $read)?)),+ })
            }
        }
    };
    (@field $row:ident $field:ident) => { $crate::store::statement::column($row, stringify!($field))? };
    (@field $row:ident $field:ident $column:literal) => { $crate::store::statement::column($row, $column)? };
    (@field $row:ident $field:ident : $read:expr) => { ($read)($row)? };
}

macro_rules! parameters {
    ($($type:ty as $stored:ty: |$value:ident| $convert:expr),+ $(,)?) => { $(
        impl ToSql for $type {
            fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
                let $value = self;
                <$stored>::to_sql(&$convert, kind, out)
            }

            fn accepts(kind: &Type) -> bool {
                <$stored as ToSql>::accepts(kind)
            }

            to_sql_checked!();
        }
    )+ };
}

parameters! {
    UserId as &str: |user| &*user.0,
    Lsn as PgLsn: |lsn| PgLsn::from(lsn.0),
}

/// Parallel arrays, one parameter each, with an element per item.
pub struct Arrays<'a>(pub Vec<Box<dyn ToSql + Sync + Send + 'a>>);

impl Arrays<'_> {
    pub fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.followed_by(&[])
    }

    /// The arrays, then `rest`.
    pub fn followed_by<'b>(
        &'b self,
        rest: &[&'b (dyn ToSql + Sync)],
    ) -> Vec<&'b (dyn ToSql + Sync)> {
        let arrays = self.0.iter().map(|array| &**array as &(dyn ToSql + Sync));
        arrays.chain(rest.iter().copied()).collect()
    }
}

/// `arrays!(items, |item| (a, b))`: the values of `a` of all items are the first array, those of
/// `b` the second.
macro_rules! arrays {
    ($items:expr, |$item:pat_param| ($($value:expr),+ $(,)?)) => {{
        let items = &$items;
        $crate::store::statement::Arrays(vec![
            $({
                // A pattern binds more than one of the arrays needs.
                #[allow(unused_variables)]
                let array = items.iter().map(|$item| $value).collect::<Vec<_>>();
                Box::new(array)
            }),+
        ])
    }};
}

pub(super) use {arrays, from_row};
