//! The platform: the reference schema with a label per user, and the writes of an application.

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
/// The ids of a user's rows start at the user's id times this.
pub const ROW_ID_STRIDE: u64 = 2_000_000;
/// Rows of the distribution queue for each user.
pub const ROWS: u64 = 50_000;
/// Releases of each user. Rows whose numbers differ by a multiple of this belong to the same
/// release.
const RELEASES: u64 = 500;

/// SQL for the next status of a row, whose transition raises only [`EVENT`].
pub const NEXT_STATUS: &str = "case status when 'scheduled' then 'transcoding' when 'transcoding' then 'batched' else 'scheduled' end";

pub struct Platform {
    pub client: Client,
    url: String,
}

/// Whether transactions are muted: their events are derived but not stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Muted {
    Yes,
    No,
}

impl Platform {
    /// Creates a platform without rows.
    pub async fn create(server: &PrivatePostgres) -> anyhow::Result<Platform> {
        server.create_database(DATABASE).await?;
        let url = server.socket_url(DATABASE);
        let client = postgres::connect(&url).await?;
        client
            .batch_execute(SCHEMA)
            .await
            .context("the reference schema")?;

        Ok(Platform { client, url })
    }

    /// Adds users from `first` to `last`, each with a label, releases, and `rows` entries of the
    /// distribution queue.
    pub async fn add_users(&self, first: u64, last: u64, rows: u64) -> anyhow::Result<()> {
        let releases = RELEASES.min(rows.max(1));
        let sql = format!(
            "insert into outlet select n, 'Outlet ' || n from generate_series(1, 40) n on conflict do nothing;
             insert into app_user select u, 'user' || u || '@example.com' from generate_series({first}, {last}) u;
             insert into label select u, u, 'Label ' || u from generate_series({first}, {last}) u;
             insert into release (id, label_id, cat, title, review_status, delivery_status)
             select u * {ROW_ID_STRIDE} + n, u, 'CAT-' || n, 'A release of ordinary length ' || n, 'approved', 'pending'
             from generate_series({first}, {last}) u, generate_series(1, {releases}) n;
             insert into distro_queue (id, release_id, outlet_id, status)
             select u * {ROW_ID_STRIDE} + n, u * {ROW_ID_STRIDE} + 1 + n % {releases}, 1 + n % 40, 'scheduled'
             from generate_series({first}, {last}) u, generate_series(0, {rows} - 1) n;
             analyze"
        );

        self.client
            .batch_execute(&sql)
            .await
            .context("the platform's rows")
    }

    /// Writes `count` transactions of one transition each. Returns a position: a reader that has
    /// passed it has read all of them.
    pub async fn write_singly(&self, user: u64, count: u64, muted: Muted) -> anyhow::Result<u64> {
        let all_but_last = count.saturating_sub(1);
        let one = move_row(user, &format!("(i % {ROWS})"));

        // The loop runs on the server: a client could not write as fast as the sidecar reads.
        let all = format!(
            "do $$ begin for i in 1..{all_but_last} loop {} {one} commit; end loop; end $$",
            mute(muted)
        );

        // The writer's speed is not measured here.
        self.client
            .batch_execute("set synchronous_commit = off")
            .await?;
        self.client
            .batch_execute(&all)
            .await
            .context("writing transitions")?;
        self.client
            .batch_execute("set synchronous_commit = on")
            .await?;

        self.write_last(user, muted).await
    }

    /// Writes one transaction of `count` transitions, and a small one. Returns a position as
    /// `write_singly` does.
    pub async fn write_at_once(&self, user: u64, count: u64, muted: Muted) -> anyhow::Result<u64> {
        let passes = count / ROWS;
        let sql = format!(
            "do $$ begin {} for i in 1..{passes} loop
             update distro_queue set status = {NEXT_STATUS}
             where id between {user}::bigint * {ROW_ID_STRIDE} and {user}::bigint * {ROW_ID_STRIDE} + {ROWS} - 1;
             end loop; end $$",
            mute(muted)
        );

        self.client
            .batch_execute(&sql)
            .await
            .context("one large transaction")?;
        self.write_last(user, muted).await
    }

    /// Moves each of a user's first `rows` rows once, muted. Returns a position as `write_singly`
    /// does.
    pub async fn touch(&self, user: u64, rows: u64) -> anyhow::Result<u64> {
        let sql = format!(
            "do $$ begin {}
             update distro_queue set status = {NEXT_STATUS}
             where id between {user}::bigint * {ROW_ID_STRIDE} and {user}::bigint * {ROW_ID_STRIDE} + {rows} - 1;
             end $$",
            mute(Muted::Yes)
        );

        self.client
            .batch_execute(&sql)
            .await
            .context("moving rows")?;
        self.write_last(user, Muted::Yes).await
    }

    /// Writes a transition, and returns a position inside its transaction: a position before it
    /// could be passed by another transaction that ends earlier, such as a heartbeat.
    async fn write_last(&self, user: u64, muted: Muted) -> anyhow::Result<u64> {
        self.client.batch_execute("begin").await?;
        let position = self.position().await?;
        let last = format!(
            "do $$ begin {} {} end $$; commit",
            mute(muted),
            move_row(user, "0")
        );
        self.client
            .batch_execute(&last)
            .await
            .context("the last transition")?;

        Ok(position)
    }

    /// Returns the current end of the WAL.
    pub async fn position(&self) -> anyhow::Result<u64> {
        let row = self
            .client
            .query_one("select pg_current_wal_insert_lsn()", &[])
            .await?;
        Ok(row.get::<_, tokio_postgres::types::PgLsn>(0).into())
    }

    /// Whether the slot's reader has acknowledged `position`.
    pub async fn has_acknowledged(&self, slot: &str, position: u64) -> anyhow::Result<bool> {
        let sql = "select confirmed_flush_lsn >= $2 from pg_replication_slots where slot_name = $1";
        let position = tokio_postgres::types::PgLsn::from(position);
        Ok(self
            .client
            .query_one(sql, &[&slot, &position])
            .await?
            .get(0))
    }

    /// Waits until a process reads from the slot.
    pub async fn wait_for_reader(&self, slot: &str) -> anyhow::Result<()> {
        let sql = "select active from pg_replication_slots where slot_name = $1";
        crate::wait::eventually("a process reads from the slot", || async {
            Ok(self
                .client
                .query_one(sql, &[&slot])
                .await?
                .get::<_, bool>(0))
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
         where id = {user}::bigint * {ROW_ID_STRIDE} + {number};"
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

/// A transaction of `rows` rows from `first_row` on: when its commit was sent, and how long the
/// commit took.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    pub first_row: u64,
    pub rows: u64,
    /// Microseconds since 1970.
    pub sent_at: u64,
    pub took: Duration,
}

impl Writer {
    pub async fn connect(url: &str) -> anyhow::Result<Writer> {
        let client = postgres::connect(url).await?;
        client
            .batch_execute("set plan_cache_mode = force_generic_plan")
            .await?;

        let sql = format!(
            "update distro_queue set status = {NEXT_STATUS}, updated_at = now() where id between $1::bigint and $2"
        );
        Ok(Writer {
            update: client.prepare(&sql).await?,
            client,
        })
    }

    /// Commits one transaction with a transition of each of these rows.
    pub async fn commit_all(&self, rows: &[i64]) -> anyhow::Result<()> {
        let sql = format!(
            "update distro_queue set status = {NEXT_STATUS}, updated_at = now() where id = any($1::bigint[])"
        );
        self.client.execute(&sql, &[&rows]).await?;
        Ok(())
    }

    /// Commits a transition of each of `rows` rows from `first_row` on.
    pub async fn commit(&self, first_row: u64, rows: u64) -> anyhow::Result<Commit> {
        let first = first_row as i64;
        let last = (first_row + rows) as i64 - 1;
        let parameters: [&(dyn ToSql + Sync); 2] = [&first, &last];
        let ((), _) = tokio::try_join!(
            biased;
            self.client.batch_execute("begin"),
            self.client.execute(&self.update, &parameters),
        )?;
        let sent_at = micros_now();
        let started = std::time::Instant::now();

        self.client.batch_execute("commit").await?;
        Ok(Commit {
            first_row,
            rows,
            sent_at,
            took: started.elapsed(),
        })
    }
}

/// Microseconds since 1970, by the clock that every process here shares.
pub fn micros_now() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros() as u64
}
