//! The simulated platform: runs several workflows concurrently, transaction by transaction, as an
//! application would.

use std::collections::VecDeque;
use std::time::Duration;

use tokio_postgres::Client;

use super::scenario::{Scenario, Transaction, below};
use crate::postgres;

const REFERENCE_SCHEMA: &str = include_str!("../../../sql/primary/reference_schema.sql");
const MAX_WORKFLOWS: usize = 12;

/// A connection to the simulated platform's database, with the workflows in progress.
pub struct Platform {
    client: Client,
    scenario: Scenario,
    workflows: Vec<VecDeque<Transaction>>,
}

impl Platform {
    /// Creates the platform's tables and first rows in an empty database.
    pub async fn create(url: &str) -> anyhow::Result<Platform> {
        let client = postgres::connect(url).await?;
        let mut platform = Platform {
            client,
            scenario: Scenario::default(),
            workflows: Vec::new(),
        };

        platform
            .client
            .batch_execute(REFERENCE_SCHEMA)
            .await
            .map_err(explain)?;
        platform.execute(Scenario::initial_rows()).await?;

        Ok(platform)
    }

    /// Executes the next transaction of one of the workflows.
    pub async fn step(&mut self) -> anyhow::Result<()> {
        if self.workflows.is_empty() || (self.workflows.len() < MAX_WORKFLOWS && below(4) == 0) {
            self.workflows.push(self.scenario.workflow().into());
        }

        let chosen = below(self.workflows.len());
        let transaction = self.workflows[chosen].pop_front();

        if self.workflows[chosen].is_empty() {
            self.workflows.swap_remove(chosen);
        }

        match transaction {
            Some(transaction) => self.execute(transaction).await,
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

    async fn execute(&mut self, transaction: Transaction) -> anyhow::Result<()> {
        let open = self.client.transaction().await.map_err(explain)?;

        for statement in &transaction.statements {
            open.batch_execute(statement).await.map_err(explain)?;
        }

        let end = if transaction.committed {
            open.commit().await
        } else {
            open.rollback().await
        };

        end.map_err(explain)
    }
}

fn explain(error: tokio_postgres::Error) -> anyhow::Error {
    anyhow::anyhow!("the platform's database: {}", postgres::describe(&error))
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
        let mut workflow = platform.scenario.workflow().into_iter();
        let draft = workflow.next().unwrap();

        platform.execute(draft).await.unwrap();
        let rolled_back = workflow.next().unwrap();

        assert!(!rolled_back.committed && !rolled_back.statements.is_empty());
        platform.execute(rolled_back).await.unwrap();

        let row = platform
            .client
            .query_one("select review_status from release", &[])
            .await
            .unwrap();
        assert_eq!(row.get::<_, &str>(0), "draft");
    }
}
