//! The primary: the reference schema with a label for each user, and what an application does to its rows.

use std::time::{Duration, SystemTime};

use anyhow::Context;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use walhook::postgres;
use walhook::private_postgres::PrivatePostgres;

const SCHEMA: &str = include_str!("../../sql/primary/reference_schema.sql");
pub const DATABASE: &str = "platform";
/// The one event that every transition here raises.
pub const EVENT: &str = "distribution.outlet.status_changed";
/// Rows of user `u` are numbered from `u` times this on.
pub const ROWS_APART: u64 = 2_000_000;
/// Rows of the distribution queue for each user.
pub const ROWS: u64 = 50_000;
/// Releases of each user: row `n` is of one, and row `n` and that many more of the same.
const RELEASES: u64 = 500;

/// What moves a row to another status that raises [`EVENT`] and nothing else.
pub const NEXT_STATUS: &str =
    "case status when 'scheduled' then 'transcoding' when 'transcoding' then 'batched' else 'scheduled' end";

pub struct Platform {
    pub client: Client,
    url: String,
}

/// Whether a backlog's transactions ask to be passed over: everything is derived then, and nothing is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Muted {
    Yes,
    No,
}

impl Platform {
    /// An empty platform.
    pub async fn found(server: &PrivatePostgres) -> anyhow::Result<Platform> {
        server.create_database(DATABASE).await?;
        let url = server.socket_url(DATABASE);
        let client = postgres::connect(&url).await?;
        client.batch_execute(SCHEMA).await.context("the reference schema")?;
        Ok(Platform { client, url })
    }

    /// Users from `first` to `last`, each with a label, releases, and `rows` entries of the distribution queue.
    pub async fn add_users(&self, first: u64, last: u64, rows: u64) -> anyhow::Result<()> {
        let releases = RELEASES.min(rows.max(1));
        let sql = format!(
            "insert into outlet select n, 'Outlet ' || n from generate_series(1, 40) n on conflict do nothing;
             insert into app_user select u, 'user' || u || '@example.com' from generate_series({first}, {last}) u;
             insert into label select u, u, 'Label ' || u from generate_series({first}, {last}) u;
             insert into release (id, label_id, cat, title, review_status, delivery_status)
             select u * {ROWS_APART} + n, u, 'CAT-' || n, 'A release of ordinary length ' || n, 'approved', 'pending'
             from generate_series({first}, {last}) u, generate_series(1, {releases}) n;
             insert into distro_queue (id, release_id, outlet_id, status)
             select u * {ROWS_APART} + n, u * {ROWS_APART} + 1 + n % {releases}, 1 + n % 40, 'scheduled'
             from generate_series({first}, {last}) u, generate_series(0, {rows} - 1) n;
             analyze"
        );
        self.client.batch_execute(&sql).await.context("the platform's rows")
    }

    /// Writes `count` transactions of one transition each. Gives a place in the log: whoever has read beyond it has read all.
    pub async fn write_singly(&self, user: u64, count: u64, muted: Muted) -> anyhow::Result<u64> {
        let but_one = count.saturating_sub(1);
        let one = move_row(user, &format!("(i % {ROWS})"));
        // The loop commits on the server: a client could not write as fast as is read.
        let all = format!("do $$ begin for i in 1..{but_one} loop {} {one} commit; end loop; end $$", mute(muted));
        // The writer is not what is measured here.
        self.client.batch_execute("set synchronous_commit = off").await?;
        self.client.batch_execute(&all).await.context("writing transitions")?;
        self.client.batch_execute("set synchronous_commit = on").await?;
        self.write_last(user, muted).await
    }

    /// Writes one transaction of `count` transitions, and a small one. Gives a place as `write_singly` does.
    pub async fn write_at_once(&self, user: u64, count: u64, muted: Muted) -> anyhow::Result<u64> {
        let passes = count / ROWS;
        let sql = format!(
            "do $$ begin {} for i in 1..{passes} loop
             update distro_queue set status = {NEXT_STATUS}
             where id between {user}::bigint * {ROWS_APART} and {user}::bigint * {ROWS_APART} + {ROWS} - 1;
             end loop; end $$",
            mute(muted)
        );
        self.client.batch_execute(&sql).await.context("one large transaction")?;
        self.write_last(user, muted).await
    }

    /// Moves each of a user's first `rows` rows once, muted. Gives a place as `write_singly` does.
    pub async fn touch(&self, user: u64, rows: u64) -> anyhow::Result<u64> {
        let sql = format!(
            "do $$ begin {}
             update distro_queue set status = {NEXT_STATUS}
             where id between {user}::bigint * {ROWS_APART} and {user}::bigint * {ROWS_APART} + {rows} - 1;
             end $$",
            mute(Muted::Yes)
        );
        self.client.batch_execute(&sql).await.context("moving rows")?;
        self.write_last(user, Muted::Yes).await
    }

    /// Writes a transition, and gives a place inside its transaction: one before it could be passed by a transaction of others'
    /// that ends before it, such as a heartbeat.
    async fn write_last(&self, user: u64, muted: Muted) -> anyhow::Result<u64> {
        self.client.batch_execute("begin").await?;
        let place = self.position().await?;
        let last = format!("do $$ begin {} {} end $$; commit", mute(muted), move_row(user, "0"));
        self.client.batch_execute(&last).await.context("the last transition")?;
        Ok(place)
    }

    /// The end of the log.
    pub async fn position(&self) -> anyhow::Result<u64> {
        let row = self.client.query_one("select pg_current_wal_insert_lsn()", &[]).await?;
        Ok(row.get::<_, tokio_postgres::types::PgLsn>(0).into())
    }

    /// Whether the slot's reader has acknowledged `place`.
    pub async fn has_acknowledged(&self, slot: &str, place: u64) -> anyhow::Result<bool> {
        let sql = "select confirmed_flush_lsn >= $2 from pg_replication_slots where slot_name = $1";
        let place = tokio_postgres::types::PgLsn::from(place);
        Ok(self.client.query_one(sql, &[&slot, &place]).await?.get(0))
    }

    /// Waits until somebody reads from the slot.
    pub async fn wait_for_reader(&self, slot: &str) -> anyhow::Result<()> {
        let sql = "select active from pg_replication_slots where slot_name = $1";
        crate::wait::eventually("somebody reads from the slot", || async {
            Ok(self.client.query_one(sql, &[&slot]).await?.get::<_, bool>(0))
        })
        .await
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

fn move_row(user: u64, number: &str) -> String {
    format!(
        "update distro_queue set status = {NEXT_STATUS}, updated_at = now()
         where id = {user}::bigint * {ROWS_APART} + {number};"
    )
}

fn mute(muted: Muted) -> &'static str {
    match muted {
        Muted::Yes => "perform pg_logical_emit_message(true, 'walhook', 'mute');",
        Muted::No => "",
    }
}

/// An application that commits transitions, durably.
pub struct Writer {
    client: Client,
    update: Statement,
}

/// A transaction of `rows` rows from `first_row` on: when its commit was asked for, and how long that took.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    pub first_row: u64,
    pub rows: u64,
    /// Microseconds since 1970.
    pub begun_at: u64,
    pub took: Duration,
}

impl Writer {
    pub async fn connect(url: &str) -> anyhow::Result<Writer> {
        let client = postgres::connect(url).await?;
        client.batch_execute("set plan_cache_mode = force_generic_plan").await?;
        let sql = format!(
            "update distro_queue set status = {NEXT_STATUS}, updated_at = now() where id between $1::bigint and $2"
        );
        Ok(Writer { update: client.prepare(&sql).await?, client })
    }

    /// Commits a transition of each of `rows` rows from `first_row` on.
    pub async fn commit(&self, first_row: u64, rows: u64) -> anyhow::Result<Commit> {
        let (first, last) = (first_row as i64, (first_row + rows) as i64 - 1);
        let parameters: [&(dyn ToSql + Sync); 2] = [&first, &last];
        let ((), _) = tokio::try_join!(
            biased;
            self.client.batch_execute("begin"),
            self.client.execute(&self.update, &parameters),
        )?;
        let begun_at = micros_now();
        let begun = std::time::Instant::now();
        self.client.batch_execute("commit").await?;
        Ok(Commit { first_row, rows, begun_at, took: begun.elapsed() })
    }
}

/// Microseconds since 1970, by the clock that every process here shares.
pub fn micros_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}
