//! The account at the end: every committed transition has one event, every delivery has ended once,
//! and nothing else is there.
//!
//! Events and the attempt log are copied before they expire, so that the account covers all days of
//! the run.

use std::collections::{BTreeMap, HashMap};

use tokio_postgres::Client;
use uuid::Uuid;

use super::collector::Seen;
use super::tenants::{Replayed, Tenant, Webhook};
use crate::support::TestApp;

const CREATE: &str = "
    create schema account;
    create table account.event (
        id uuid primary key, user_id text, kind text, occurred_at timestamptz, sequence bigint, subject bigint, status text);
    create table account.attempt (
        webhook_id uuid, id uuid, delivery_id uuid, event_id uuid, round smallint, outcome text, primary key (webhook_id, id))";

const COPY: &str = "
    insert into account.event
    select id, user_id, kind, occurred_at, sequence, coalesce(data ->> 'payment_request_id', data ->> 'release_id')::bigint,
        coalesce(data ->> 'new_status', data ->> 'delivery_status', 'ready')
    from walhook.event on conflict do nothing;
    insert into account.attempt
    select webhook_id, id, delivery_id, event_id, round, outcome from walhook.attempt on conflict do nothing";

pub struct Account {
    client: Client,
}

/// The figures of an account.
#[derive(Debug)]
pub struct Totals {
    pub events: usize,
    pub deliveries: i64,
    pub attempts: i64,
    pub delivered: i64,
    pub permanently_failed: i64,
    pub cancelled: i64,
}

/// Creates the tables of the copies.
pub async fn create(client: &Client) {
    client
        .batch_execute(CREATE)
        .await
        .expect("the tables of the account");
}

/// Copies what is new since the last copy.
pub async fn copy(client: &Client) {
    client.batch_execute(COPY).await.expect("a copy");
}

/// Removes the copies of an erased user.
pub async fn forget(client: &Client, user: i64, webhooks: &[Uuid]) {
    client
        .execute(
            "delete from account.event where user_id = $1",
            &[&user.to_string()],
        )
        .await
        .expect("a removal");

    let attempts = "delete from account.attempt where webhook_id = any($1)";
    client
        .execute(attempts, &[&webhooks])
        .await
        .expect("a removal");
}

impl Account {
    /// Copies the last rows.
    pub async fn open(app: &TestApp) -> Account {
        let client = app.store().await;
        copy(&client).await;
        Account { client }
    }

    async fn count(&self, query: &str) -> i64 {
        self.client
            .query_one(query, &[])
            .await
            .unwrap_or_else(|error| panic!("{query}: {error}"))
            .get(0)
    }

    /// Asserts that the events are exactly the committed transitions.
    pub async fn assert_events_are_transitions(&self, primary: &Client, owners: &[i64]) -> usize {
        type Transition = (String, i64, String, i64);
        let rows = "select kind, subject, status, user_id from transition where user_id = any($1)";
        let committed = primary
            .query(rows, &[&owners])
            .await
            .expect("the transitions");
        let rows = "select kind, subject, status, user_id::bigint from account.event";
        let stored = self.client.query(rows, &[]).await.expect("the events");
        let transition = |row: &tokio_postgres::Row| -> Transition {
            (row.get(0), row.get(1), row.get(2), row.get(3))
        };

        let mut balance: HashMap<Transition, i32> = HashMap::new();
        committed
            .iter()
            .for_each(|row| *balance.entry(transition(row)).or_default() += 1);
        stored
            .iter()
            .for_each(|row| *balance.entry(transition(row)).or_default() -= 1);

        let wrong: Vec<_> = balance
            .iter()
            .filter(|(_, balance)| **balance != 0)
            .take(10)
            .collect();
        assert!(
            wrong.is_empty(),
            "lost (positive) or invented (negative) events: {wrong:?}"
        );

        stored.len()
    }

    /// Asserts that each round of each delivery has ended once. The request of a replica that was
    /// paused for longer than its lease is logged too, and so is one that was answered after the
    /// cancellation: both end nothing.
    pub async fn assert_deliveries_have_ended(&self, webhooks: &[Uuid]) {
        let wrong = "select delivery_id::text, round, outcomes::text from (
                select delivery_id, round, array_agg(outcome order by id) as outcomes,
                    count(*) filter (where outcome = 'cancelled') as cancelled,
                    count(*) filter (where outcome = 'permanently_failed') as failed,
                    count(*) filter (where outcome in ('delivered', 'permanently_failed')) as ended
                from account.attempt where webhook_id = any($1) group by delivery_id, round) as rounds
             where cancelled + ended = 0 or cancelled + failed > 1 limit 10";

        let wrong = self
            .client
            .query(wrong, &[&webhooks])
            .await
            .expect("rounds");
        let text: Vec<(String, i16, String)> = wrong
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect();

        assert!(
            text.is_empty(),
            "deliveries that have not ended once: {text:?}"
        );
        let gaps = "select count(*) from (select from account.attempt group by delivery_id
                    having max(round) <> count(distinct round)) as wrong";
        assert_eq!(self.count(gaps).await, 0, "a delivery lacks a round");
        assert_eq!(
            self.count("select count(*) from walhook.pending").await,
            0,
            "deliveries are pending"
        );
    }

    /// Asserts that webhooks which nobody edits got every event of their types, and that each was
    /// counted once.
    pub async fn assert_complete(&self, tenant: &Tenant) {
        for Webhook { id, path, events } in &tenant.webhooks {
            let numbers =
                "select (select count(*) from account.event where user_id = $2 and kind = any($3)),
                    count(distinct event_id) filter (where outcome = 'delivered'),
                    (select success_count from walhook.webhook where id = $1)
                from account.attempt where webhook_id = $1";

            let row = self
                .client
                .query_one(numbers, &[id, &tenant.owner.user.to_string(), events])
                .await
                .expect("counts");
            let numbers = [0, 1, 2].map(|column| row.get::<_, i64>(column));
            let [events, delivered, counted] = numbers;

            assert!(
                delivered == events && counted == events && events > 0,
                "{path}: events, events delivered, counted: {numbers:?}"
            );
        }
    }

    /// Asserts that the last round of every delivery of the webhook since a time was delivered, and
    /// that there is one for each event.
    pub async fn assert_delivered_since(&self, user: i64, replayed: &Replayed) {
        let Replayed {
            webhook: Webhook { id, path, events },
            since,
        } = replayed;
        let missing = "select count(*) from account.event
            where user_id = $2 and kind = any($3) and occurred_at >= $4 and not exists (
                select from account.attempt where webhook_id = $1 and event_id = event.id and outcome = 'delivered')";
        let row = self
            .client
            .query_one(missing, &[id, &user.to_string(), events, since])
            .await
            .expect("a count");

        assert_eq!(row.get::<_, i64>(0), 0, "{path} lacks events since {since}");
    }

    /// Asserts that the receiver got what the log reports, and nothing else.
    pub async fn assert_received(&self, seen: &Seen, webhooks: &[Uuid], hostile: &[Uuid]) {
        let rows = "select delivery_id, webhook_id, event_id, bool_or(outcome = 'delivered') from account.attempt group by 1, 2, 3";
        let rows = self.client.query(rows, &[]).await.expect("deliveries");
        let mut logged: HashMap<Uuid, (Uuid, Uuid)> = HashMap::new();

        for row in rows {
            let [delivery, webhook, event] = [0, 1, 2].map(|column| row.get::<_, Uuid>(column));
            let other = logged.insert(delivery, (webhook, event));

            assert!(
                other.is_none(),
                "delivery {delivery} has two events or webhooks"
            );
            let arrived = seen
                .deliveries
                .get(&delivery)
                .map(|arrived| (arrived.webhook, arrived.event));

            if row.get::<_, bool>(3) {
                assert!(
                    !hostile.contains(&webhook),
                    "delivery {delivery} to a hostile receiver was delivered"
                );
                assert_eq!(
                    arrived,
                    Some((webhook, event)),
                    "delivery {delivery} did not arrive as logged"
                );
            }
        }

        let of_kept = seen
            .deliveries
            .iter()
            .filter(|(_, arrived)| webhooks.contains(&arrived.webhook));
        let unknown: Vec<_> = of_kept
            .filter(|(id, _)| !logged.contains_key(*id))
            .take(10)
            .collect();
        assert!(
            unknown.is_empty(),
            "deliveries arrived that are not in the log: {unknown:?}"
        );
    }

    /// Asserts that no row of an erased user is left in any table.
    pub async fn assert_erased(&self, user: i64, webhooks: &[Uuid]) {
        let columns = "select table_name::text, column_name::text from information_schema.columns
                       where table_schema = 'walhook' and column_name in ('user_id', 'webhook_id')
                           and table_name <> 'user_addon'";
        for row in self.client.query(columns, &[]).await.expect("columns") {
            let (table, column): (String, String) = (row.get(0), row.get(1));
            let count =
                format!("select count(*) from walhook.{table} where {column}::text = any($1)");
            let ids: Vec<String> = webhooks
                .iter()
                .map(Uuid::to_string)
                .chain([user.to_string()])
                .collect();
            let left: i64 = self
                .client
                .query_one(&count, &[&ids])
                .await
                .expect("a count")
                .get(0);

            assert_eq!(left, 0, "rows of an erased user in {table}");
        }
    }

    /// Asserts that nothing was lost without a trace: no gap, and no event without an owner.
    pub async fn assert_no_gap(&self) {
        assert_eq!(
            self.count("select count(*) from walhook.gap").await,
            0,
            "gaps"
        );
        assert_eq!(
            self.count("select count(*) from walhook.unrouted_event")
                .await,
            0,
            "events without an owner"
        );
    }

    /// Returns the days with a partition of the events, and asserts that no row is outside.
    pub async fn days(&self) -> Vec<String> {
        for table in ["event", "attempt"] {
            let outside = self
                .count(&format!("select count(*) from walhook.{table}_default"))
                .await;
            assert_eq!(outside, 0, "rows of {table} are in no day's partition");
        }

        let days = "select right(inhrelid::regclass::text, 8) as day from pg_inherits
                    where inhparent = 'walhook.event'::regclass and inhrelid::regclass::text not like '%default' order by day";
        self.client
            .query(days, &[])
            .await
            .expect("partitions")
            .iter()
            .map(|row| row.get(0))
            .collect()
    }

    /// Returns the events of a user in the order of the feed.
    pub async fn feed(&self, user: i64) -> Vec<Uuid> {
        let events = "select id from account.event where user_id = $1 order by sequence";
        let rows = self
            .client
            .query(events, &[&user.to_string()])
            .await
            .expect("events");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Returns how many events each day has.
    pub async fn events_per_day(&self) -> BTreeMap<String, i64> {
        let days = "select to_char(occurred_at at time zone 'UTC', 'YYYYMMDD'), count(*) from account.event group by 1";
        self.client
            .query(days, &[])
            .await
            .expect("days")
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect()
    }

    pub async fn totals(&self) -> Totals {
        let of = async |outcome: &str| {
            self.count(&format!(
                "select count(*) from account.attempt where outcome = '{outcome}'"
            ))
            .await
        };

        Totals {
            events: self.count("select count(*) from account.event").await as usize,
            deliveries: self
                .count("select count(distinct delivery_id) from account.attempt")
                .await,
            attempts: self.count("select count(*) from account.attempt").await,
            delivered: of("delivered").await,
            permanently_failed: of("permanently_failed").await,
            cancelled: of("cancelled").await,
        }
    }
}
