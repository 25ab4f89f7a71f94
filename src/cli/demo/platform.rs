//! The simulated platform: runs several workflows concurrently, transaction by transaction, as an
//! application would.

use std::collections::VecDeque;
use std::time::Duration;

use tokio_postgres::Client;

use crate::postgres;
use crate::sql::demo::workflow;
use crate::vault::random_bytes;

const REFERENCE_SCHEMA: &str = include_str!("../../../sql/primary/reference_schema.sql");
const MAX_WORKFLOWS: usize = 12;

/// The users of the platform.
pub const USERS: [i64; 3] = [1, 2, 3];

/// The workflows that are started first: with all their transactions they contain every event, for
/// objects of the first user.
const FIRST: [&str; 2] = [workflow::PAYMENT, workflow::RELEASE];
/// The number of the first workflow.
const FIRST_NUMBER: usize = 12;

/// A connection to the simulated platform's database, with the workflows in progress.
pub struct Platform {
    client: Client,
    started: usize,
    /// The transactions of each workflow in progress.
    workflows: Vec<VecDeque<String>>,
}

impl Platform {
    /// Creates the platform's tables and first rows in an empty database.
    pub async fn create(url: &str) -> anyhow::Result<Platform> {
        let client = postgres::connect(url).await?;
        let platform = Platform {
            client,
            started: 0,
            workflows: Vec::new(),
        };

        platform.execute(REFERENCE_SCHEMA).await?;
        platform.execute(workflow::FIRST_ROWS).await?;

        Ok(platform)
    }

    /// Executes the next transaction of one of the workflows.
    pub async fn step(&mut self) -> anyhow::Result<()> {
        if self.workflows.is_empty() || (self.workflows.len() < MAX_WORKFLOWS && below(4) == 0) {
            let workflow = self.next_workflow();
            self.workflows.push(workflow);
        }

        let chosen = below(self.workflows.len());
        let transaction = self.workflows[chosen].pop_front();

        if self.workflows[chosen].is_empty() {
            self.workflows.swap_remove(chosen);
        }

        match transaction {
            Some(transaction) => self.execute(&transaction).await,
            None => Ok(()),
        }
    }

    /// Executes `rate` transactions per second, without end.
    pub async fn run(mut self, rate: u32) -> anyhow::Result<std::convert::Infallible> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);

        loop {
            ticks.tick().await;
            self.step().await?;
        }
    }

    /// Returns the transactions of the next workflow. The first ones are complete; the others are
    /// chosen by chance, and so are their optional transactions.
    fn next_workflow(&mut self) -> VecDeque<String> {
        let number = (FIRST_NUMBER + self.started).to_string();
        let first = FIRST.get(self.started);
        self.started += 1;

        let text = first.copied().unwrap_or_else(|| match below(20) {
            0..3 => workflow::PAYMENT,
            3 => workflow::ADDON,
            4 => workflow::REJECTED_RELEASE,
            _ => workflow::RELEASE,
        });

        text.split("\n\n")
            .filter(|transaction| first.is_some() || below(chances(transaction)) == 0)
            .map(|transaction| transaction.replace("$id", &number))
            .collect()
    }

    /// Executes statements in one transaction, unless they contain its end.
    async fn execute(&self, statements: &str) -> anyhow::Result<()> {
        let executed = self.client.batch_execute(statements).await;
        executed.map_err(|error| {
            anyhow::anyhow!("the platform's database: {}", postgres::describe(&error))
        })
    }
}

/// Returns the number after `-- 1 in`: the transaction occurs in one of so many workflows.
fn chances(transaction: &str) -> usize {
    let number = transaction
        .strip_prefix("-- 1 in ")
        .and_then(|rest| rest.lines().next()?.parse().ok());
    number.unwrap_or(1)
}

/// Returns a random number below `limit`, evenly distributed enough for a demonstration.
pub fn below(limit: usize) -> usize {
    usize::from(u16::from_be_bytes(random_bytes())) * limit / (usize::from(u16::MAX) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::private_postgres::{Options, PrivatePostgres};

    /// Triggers that record each change, to compare with the events that the demo promises to show.
    const RECORDER: &str = "
        create table seen (tab text, status text, takedown bool);
        create function record_change() returns trigger language plpgsql as $$
        begin
            insert into seen values (tg_table_name, coalesce(to_jsonb(new)->>'status', to_jsonb(new)->>'review_status'),
                (to_jsonb(new)->>'takedown')::bool);
            if tg_table_name = 'release' then
                insert into seen values ('release.delivery', to_jsonb(new)->>'delivery_status', null);
            end if;
            return null;
        end $$;
        do $$ declare tab text; begin
            foreach tab in array array['release', 'distro_queue', 'transcoder_queue', 'payment', 'preflight_report',
                                       'stream_radar_flag', 'user_addon'] loop
                execute format('create trigger w after insert or update or delete on %I
                                for each row execute function record_change()', tab);
            end loop;
        end $$";

    #[tokio::test]
    async fn the_workflows_contain_every_event() {
        let server = PrivatePostgres::start(Options::default()).await.unwrap();
        server.create_database("platform").await.unwrap();

        let mut platform = Platform::create(&server.url("platform")).await.unwrap();
        platform.client.batch_execute(RECORDER).await.unwrap();

        for _ in 0..600 {
            platform.step().await.unwrap();
        }

        let has = async |condition: &str| {
            let query = format!("select exists (select from seen where {condition})");
            assert!(
                platform
                    .client
                    .query_one(&query, &[])
                    .await
                    .unwrap()
                    .get::<_, bool>(0),
                "none: {condition}"
            );
        };

        has("tab = 'distro_queue' and status = 'complete' and not takedown").await;
        has("tab = 'distro_queue' and status in ('error', 'fault', 'rejected', 'batch_exception')")
            .await;
        has("tab = 'distro_queue' and status = 'complete' and takedown").await;
        has("tab = 'distro_queue' and status = 'batched'").await;
        has("tab = 'release' and status = 'require_changes'").await;
        has("tab = 'release.delivery' and status = 'distributed'").await;
        has("tab = 'preflight_report'").await;
        has("tab = 'stream_radar_flag' and status = 'active'").await;
        has("tab = 'stream_radar_flag' and status = 'resolved'").await;
        has("tab = 'payment' and status = 'ready'").await;
        has("tab = 'transcoder_queue' and status = 'complete'").await;
        has("tab = 'transcoder_queue' and status in ('error', 'incomplete')").await;
    }

    #[tokio::test]
    async fn a_transaction_that_rolls_back_leaves_no_trace() {
        let server = PrivatePostgres::start(Options::default()).await.unwrap();
        server.create_database("platform").await.unwrap();

        let mut platform = Platform::create(&server.url("platform")).await.unwrap();
        platform.next_workflow();
        let release = platform.next_workflow();

        platform.execute(&release[0]).await.unwrap();
        assert!(release[1].contains("approved") && release[1].ends_with("rollback;"));
        platform.execute(&release[1]).await.unwrap();

        let row = platform
            .client
            .query_one("select review_status from release", &[])
            .await
            .unwrap();
        assert_eq!(row.get::<_, &str>(0), "draft");
    }
}
