//! The simulated platform: carries out a few stories at a time, transaction by transaction, as an application would.

use std::collections::VecDeque;
use std::time::Duration;

use postgres_types::ToSql;
use tokio_postgres::Client;

use super::scenario::{Scenario, Transaction, below};
use crate::postgres;

const REFERENCE_SCHEMA: &str = include_str!("../../../sql/primary/reference_schema.sql");
const STORIES_AT_ONCE: usize = 12;

pub struct Platform {
    client: Client,
    scenario: Scenario,
    stories: Vec<VecDeque<Transaction>>,
}

impl Platform {
    /// Connects to an empty database and gives it tables, users, labels and outlets.
    pub async fn found(url: &str) -> anyhow::Result<Platform> {
        let client = postgres::connect(url).await?;
        let mut platform = Platform { client, scenario: Scenario::default(), stories: Vec::new() };
        platform.client.batch_execute(REFERENCE_SCHEMA).await.map_err(explain)?;
        platform.carry_out(Scenario::cast()).await?;
        Ok(platform)
    }

    /// One transaction of one of the stories.
    pub async fn step(&mut self) -> anyhow::Result<()> {
        if self.stories.is_empty() || (self.stories.len() < STORIES_AT_ONCE && below(4) == 0) {
            self.stories.push(self.scenario.story().into());
        }
        let chosen = below(self.stories.len());
        let transaction = self.stories[chosen].pop_front();
        if self.stories[chosen].is_empty() {
            self.stories.swap_remove(chosen);
        }
        match transaction {
            Some(transaction) => self.carry_out(transaction).await,
            None => Ok(()),
        }
    }

    /// Goes on for ever, `rate` transactions a second.
    pub async fn live(mut self, rate: u32) -> anyhow::Result<std::convert::Infallible> {
        let mut beat = tokio::time::interval(Duration::from_secs(1) / rate);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.tick().await;
            self.step().await?;
        }
    }

    async fn carry_out(&mut self, transaction: Transaction) -> anyhow::Result<()> {
        let open = self.client.transaction().await.map_err(explain)?;
        for statement in &transaction.statements {
            let parameters: Vec<&(dyn ToSql + Sync)> =
                statement.parameters.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect();
            open.execute(statement.sql, &parameters).await.map_err(explain)?;
        }
        let end = if transaction.committed { open.commit().await } else { open.rollback().await };
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

    /// Records what triggers of the database see, to compare with what the demo promises to show.
    const WITNESS: &str = "
        create table seen (tab text, status text, takedown bool);
        create function witness() returns trigger language plpgsql as $$
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
                                for each row execute function witness()', tab);
            end loop;
        end $$";

    #[tokio::test]
    async fn the_play_holds_something_for_every_event() {
        let server = PrivatePostgres::start(Options::default()).await.unwrap();
        server.create_database("platform").await.unwrap();
        let mut platform = Platform::found(&server.url("platform")).await.unwrap();
        platform.client.batch_execute(WITNESS).await.unwrap();
        for _ in 0..600 {
            platform.step().await.unwrap();
        }
        let has = async |condition: &str| {
            let query = format!("select exists (select from seen where {condition})");
            assert!(platform.client.query_one(&query, &[]).await.unwrap().get::<_, bool>(0), "none: {condition}");
        };
        has("tab = 'distro_queue' and status = 'complete' and not takedown").await;
        has("tab = 'distro_queue' and status in ('error', 'fault', 'rejected', 'batch_exception')").await;
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
    async fn what_is_taken_back_leaves_no_trace() {
        let server = PrivatePostgres::start(Options::default()).await.unwrap();
        server.create_database("platform").await.unwrap();
        let mut platform = Platform::found(&server.url("platform")).await.unwrap();
        let mut story = platform.scenario.story().into_iter();
        let draft = story.next().unwrap();
        platform.carry_out(draft).await.unwrap();
        let second_thoughts = story.next().unwrap();
        assert!(!second_thoughts.committed && !second_thoughts.statements.is_empty());
        platform.carry_out(second_thoughts).await.unwrap();
        let row = platform.client.query_one("select review_status from release", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), "draft");
    }
}
