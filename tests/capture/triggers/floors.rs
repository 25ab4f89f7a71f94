//! Deleted rows of the outbox that vacuum cannot remove: polls do not visit them, and no row is
//! skipped with them.

use std::collections::HashSet;
use std::path::Path;

use postgres_types::{ToSql, Type};
use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres};

use super::{number, prepared};
use crate::support::versions::selected_or_latest;
use crate::support::{eventually, next_id, one, run_sql, server};

const SCHEMA: &str = walhook::sql::primary::triggers::SCHEMA;
const PAGE: &str = walhook::sql::primary::outbox::PAGE;
const CLEAR: &str = walhook::sql::primary::outbox::CLEAR;
/// More than a page has.
const DELETED: i64 = 5_000;

/// Returns how often the index of row numbers was scanned, and how many of its entries these scans
/// have read.
async fn index_reads(client: &Client) -> (i64, i64) {
    let reads = "select idx_scan, idx_tup_read from pg_stat_user_indexes where indexrelname = 'outbox_pkey'";
    let row = client.query_one(reads, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

/// Returns how many index entries a poll reads on average.
async fn entries_per_poll(client: &Client) -> i64 {
    let (reported, _) = index_reads(client).await;

    // The next report of the statistics has what was read before.
    let (scans, entries) = eventually("a report of the polls", async || {
        let reads = index_reads(client).await;
        (reads.0 > reported).then_some(reads)
    })
    .await;
    let (more_scans, more_entries) = eventually("more polls", async || {
        let (more_scans, more_entries) = index_reads(client).await;
        (more_scans >= scans + 60).then_some((more_scans - scans, more_entries - entries))
    })
    .await;
    println!("{more_scans} scans have read {more_entries} entries of the index");

    more_entries / more_scans
}

#[tokio::test]
async fn polls_do_not_visit_deleted_rows_that_vacuum_cannot_remove() {
    let mut app = prepared().await;
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    // Reads only, as a dump does.
    let dump = app.source().await;
    run_sql(
        &dump,
        "begin isolation level repeatable read; select count(*) from payment",
    )
    .await;

    // Its row has a lower number than the others.
    let writer = app.source().await;
    let insert = |id: i64| {
        format!(
            "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
             values ({id}, {user}, 'I', 1, 1, 'ready')"
        )
    };

    writer
        .batch_execute(&format!("begin; {}", insert(next_id())))
        .await
        .unwrap();
    let last = next_id() + 1_000_000;
    let many = format!(
        "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
         select {last} + n, {user}, 'I', 1, 1, 'draft' from generate_series(1, {DELETED}) n"
    );

    run_sql(&platform.client, &many).await;
    let observer = app.source().await;
    let until_empty = async || {
        let unread = "select count(*) from walhook_capture.outbox";
        eventually("an empty outbox", async || {
            (number(&observer, unread).await == 0).then_some(())
        })
        .await;
    };

    until_empty().await;
    let beside_both = entries_per_poll(&observer).await;

    assert!(
        beside_both < DELETED / 10,
        "{beside_both} entries in each poll, beside a transaction that writes"
    );
    platform.payment(user, "ready").await;
    app.wait_for_events(1).await;
    run_sql(&writer, "commit").await;
    app.wait_for_events(2).await;
    until_empty().await;

    let beside_dump = entries_per_poll(&observer).await;
    assert!(
        beside_dump < DELETED / 10,
        "{beside_dump} entries in each poll, beside a dump"
    );

    // A new process, which knows no floor.
    app.restart().await;
    platform.payment(user, "ready").await;
    app.wait_for_events(3).await;

    let restarted = entries_per_poll(&observer).await;
    assert!(
        restarted < DELETED / 10,
        "{restarted} entries in each poll, after a restart"
    );
    run_sql(&dump, "commit").await;
}

/// A server with an outbox, whose rows are inserted by hand.
struct Outbox {
    server: PrivatePostgres,
    client: Client,
    timeline: String,
    /// All floors so far: row numbers and transaction ids.
    floors: (Vec<i64>, Vec<String>),
}

/// The rows of a page and the snapshot that they were read with.
struct Found {
    rows: Vec<i64>,
    snapshot: String,
    assigned: Option<i64>,
    numbering: Option<u32>,
}

impl Outbox {
    async fn start(programs: &Path) -> Outbox {
        let server = server(Options {
            programs: Some(programs),
            ..Options::default()
        })
        .await;

        let client = postgres::connect(&server.url("postgres")).await.unwrap();
        run_sql(&client, &format!("{SCHEMA} create table written (n int)")).await;

        let timeline = "select left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)";
        let timeline = one(&client, timeline).await;
        Outbox {
            server,
            client,
            timeline,
            floors: Default::default(),
        }
    }

    async fn session(&self) -> Client {
        postgres::connect(&self.server.url("postgres"))
            .await
            .unwrap()
    }

    async fn read(&self, from: &str, (rows, transactions): &(Vec<i64>, Vec<String>)) -> Found {
        let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
            (&from, Type::TEXT),
            (&None::<&str>, Type::TEXT),
            (&0_i64, Type::INT8),
            (&1_000_000_i64, Type::INT8),
            (&1_000_000_000_i64, Type::INT8),
            (rows, Type::INT8_ARRAY),
            (transactions, Type::TEXT_ARRAY),
        ];

        let found = self.client.query_typed(PAGE, &parameters).await.unwrap();
        Found {
            rows: found.iter().filter_map(|row| row.get("seq")).collect(),
            snapshot: found[0].get("snapshot"),
            assigned: found[0].get("assigned"),
            numbering: found[0].get("numbering"),
        }
    }

    /// Deletes rows up to `last` that the snapshot sees, and adds a floor.
    async fn clear(&mut self, last: i64, snapshot: &str, window: i64) -> i64 {
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&last, Type::INT8),
            (&snapshot, Type::TEXT),
            (&window, Type::INT8),
            (&0_i64, Type::INT8),
            (&self.timeline, Type::TEXT),
        ];

        let found = self
            .client
            .query_typed_one(CLEAR, &parameters)
            .await
            .unwrap();
        assert!(found.get::<_, bool>("is_expected"));
        self.floors.0.push(last);
        self.floors.1.push(found.get("transaction"));

        found.get("rows")
    }

    /// Returns how many blocks a poll visits.
    async fn blocks(&self, from: &str, (rows, transactions): &(Vec<i64>, Vec<String>)) -> u64 {
        let explained = format!(
            "explain (analyze, buffers, format json) execute page('{from}', null, 0, 1000, 1048576, '{{{}}}', '{{{}}}')",
            rows.iter()
                .map(i64::to_string)
                .collect::<Vec<_>>()
                .join(","),
            transactions.join(",")
        );

        let plan: serde_json::Value = one(&self.client, &explained).await;
        let blocks = |kind: &str| plan[0]["Plan"][kind].as_u64().expect("a number of blocks");
        blocks("Shared Hit Blocks") + blocks("Shared Read Blocks")
    }
}

/// A generator of numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

const ROW: &str = "insert into walhook_capture.outbox (relation, operation, muted) values ('payment', 'T', false)";

/// Transactions that overlap at random: each poll with all floors finds what a poll without any
/// finds.
async fn assert_floors_skip_nothing(version: u32, programs: &Path) {
    let mut outbox = Outbox::start(programs).await;
    let mut numbers = Numbers(version.into());
    let mut sessions = Vec::new();

    for _ in 0..6 {
        sessions.push((outbox.session().await, false));
    }

    let mut from = "1:1:".to_owned();
    let mut last = 0;
    let mut read = HashSet::new();

    for step in 0..1_500_i64 {
        let chosen = numbers.below(sessions.len());
        let (session, open) = &mut sessions[chosen];

        match numbers.below(12) {
            0..=2 if !*open => {
                run_sql(session, "begin; insert into written values (1)").await;
                *open = true;
            }
            0..=2 => run_sql(session, ROW).await,
            3 if *open => {
                run_sql(
                    session,
                    &format!("savepoint s; {ROW}; rollback to s; {ROW}"),
                )
                .await
            }
            4 | 5 => run_sql(session, &format!("{ROW}; {ROW}")).await,
            // The first session is one with long transactions.
            6 | 7 if *open && (chosen > 0 || numbers.below(8) == 0) => {
                session
                    .batch_execute(if numbers.below(4) == 0 {
                        "rollback"
                    } else {
                        "commit"
                    })
                    .await
                    .unwrap();
                *open = false;
            }
            8..=10 => {
                let all = outbox.read(&from, &Default::default()).await;
                let found = outbox.read(&from, &outbox.floors).await;

                assert_eq!(
                    found.rows, all.rows,
                    "PostgreSQL {version}, step {step}, {from} {:?}",
                    outbox.floors
                );
                assert!(
                    found.rows.iter().all(|row| read.insert(*row)),
                    "a row was read again: {:?}",
                    found.rows
                );
                last = found.rows.iter().copied().fold(last, i64::max);
                from = found.snapshot;

                if let (0, Some(assigned)) = (numbers.below(4), found.assigned) {
                    outbox.floors.0.push(assigned);
                    let id = outbox
                        .client
                        .query_one("select pg_current_xact_id()::text", &[])
                        .await
                        .unwrap();
                    outbox.floors.1.push(id.get(0));
                }
            }
            11 => {
                outbox.clear(last, &from, step + 1).await;
            }
            _ => {}
        }
    }

    for (session, open) in &sessions {
        session
            .batch_execute(if *open { "commit" } else { "select" })
            .await
            .unwrap();
    }

    let rest = outbox.read(&from, &outbox.floors).await;
    assert!(rest.rows.iter().all(|row| read.insert(*row)));
    outbox.clear(i64::MAX, &rest.snapshot, i64::MAX).await;

    assert_eq!(
        number(
            &outbox.client,
            "select count(*) from walhook_capture.outbox"
        )
        .await,
        0
    );

    let found = read.len();
    let floors = outbox.floors.0.len();
    println!("PostgreSQL {version}: {found} rows were read, beside {floors} floors");
    assert!(found > 300 && floors > 100, "{found} rows, {floors} floors");
}

/// The cost of a poll beside a transaction that keeps vacuum from removing rows.
async fn assert_polls_are_cheap(version: u32, programs: &Path) {
    let mut outbox = Outbox::start(programs).await;
    let page =
        format!("prepare page (text, text, bigint, bigint, bigint, bigint[], text[]) as {PAGE}");

    run_sql(&outbox.client, &page).await;
    let dump = outbox.session().await;

    run_sql(
        &dump,
        "begin isolation level repeatable read; select count(*) from written",
    )
    .await;
    let many = "insert into walhook_capture.outbox (relation, operation, muted, new)
         select 'payment', 'I', false, array[repeat('x', 100)] from generate_series(1, 20000)";

    run_sql(&outbox.client, many).await;
    let found = outbox.read("1:1:", &Default::default()).await;

    assert_eq!(outbox.clear(20_000, &found.snapshot, 1).await, 20_000);
    run_sql(&outbox.client, "vacuum analyze walhook_capture.outbox").await;

    let from = outbox.read(&found.snapshot, &outbox.floors).await.snapshot;
    let before = outbox.blocks(&from, &Default::default()).await;
    let after = outbox.blocks(&from, &outbox.floors).await;

    println!(
        "PostgreSQL {version}: a poll visits {before} blocks without a floor, {after} with one"
    );
    assert!(
        before > 10 * after,
        "PostgreSQL {version}: {before} and {after} blocks"
    );
}

/// A sequence that starts again is another one, and one that assigns numbers out of order has no
/// floors.
async fn assert_numbering_is_identified(version: u32, programs: &Path) {
    let outbox = Outbox::start(programs).await;
    let none = Default::default();

    assert_eq!(
        outbox.read("1:1:", &none).await.assigned,
        None,
        "PostgreSQL {version}"
    );
    let mut seen = HashSet::new();

    for change in [
        "select",
        "truncate walhook_capture.outbox restart identity",
        "alter table walhook_capture.outbox alter seq restart",
    ] {
        run_sql(&outbox.client, &format!("{change}; {ROW}")).await;
        let found = outbox.read("1:1:", &none).await;
        assert_eq!(found.assigned, Some(1), "PostgreSQL {version}");
        assert!(
            seen.insert(found.numbering.expect("a file")),
            "PostgreSQL {version}: {change}"
        );
        run_sql(&outbox.client, "delete from walhook_capture.outbox").await;
    }

    run_sql(
        &outbox.client,
        "alter table walhook_capture.outbox alter seq set cache 10",
    )
    .await;
    let found = outbox.read("1:1:", &none).await;

    assert_eq!(
        (found.assigned, found.numbering),
        (None, None),
        "PostgreSQL {version}"
    );

    // A role that may read and clear the outbox, but not see the sequence's numbers.
    let limited = "alter table walhook_capture.outbox alter seq set cache 1; create role reader;
        grant usage on schema walhook_capture to reader; grant select on all tables in schema walhook_capture to reader;
        grant select on walhook_capture.failures to reader; grant pg_read_all_stats to reader; set role reader";
    run_sql(&outbox.client, limited).await;

    let found = outbox.read("1:1:", &none).await;
    assert!(
        found.assigned.is_none() && found.numbering.is_some(),
        "PostgreSQL {version}"
    );
}

#[tokio::test]
async fn floors_hold() {
    let (version, programs) = selected_or_latest().expect("an installed PostgreSQL");

    assert_numbering_is_identified(version, &programs).await;
    assert_polls_are_cheap(version, &programs).await;
    assert_floors_skip_nothing(version, &programs).await;
}
