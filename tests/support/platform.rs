//! A client that acts as the platform: it writes rows of the reference schema. Ids come from one
//! counter for all tables.

use std::sync::atomic::{AtomicI64, Ordering};

use postgres_types::ToSql;
use tokio_postgres::Client;

pub struct Platform {
    pub client: Client,
}

static NEXT_ID: AtomicI64 = AtomicI64::new(1_000);

/// Returns an unused id.
pub fn next_id() -> i64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

impl Platform {
    pub fn new(client: Client) -> Platform {
        Platform { client }
    }

    pub async fn execute(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> u64 {
        let result = self.client.execute(statement, parameters).await;
        result
            .unwrap_or_else(|error| panic!("{statement}: {}", walhook::postgres::describe(&error)))
    }

    /// Executes statements as one transaction.
    pub async fn transaction(&self, statements: &str) {
        let result = self
            .client
            .batch_execute(&format!("begin; {statements}; commit"))
            .await;
        result.unwrap_or_else(|error| {
            panic!("{statements}: {}", walhook::postgres::describe(&error))
        });
    }

    /// Executes statements and rolls them back.
    pub async fn rolled_back(&self, statements: &str) {
        let result = self
            .client
            .batch_execute(&format!("begin; {statements}; rollback"))
            .await;
        result.unwrap_or_else(|error| {
            panic!("{statements}: {}", walhook::postgres::describe(&error))
        });
    }

    pub async fn user(&self, addons: &[&str]) -> i64 {
        let id = next_id();
        self.execute(
            "insert into app_user (id, email) values ($1, $2)",
            &[&id, &format!("user{id}@example.com")],
        )
        .await;

        for addon in addons {
            self.execute(
                "insert into user_addon (user_id, addon) values ($1, $2)",
                &[&id, addon],
            )
            .await;
        }

        id
    }

    pub async fn label(&self, user: i64) -> i64 {
        let id = next_id();
        self.execute(
            "insert into label (id, user_id, name) values ($1, $2, $3)",
            &[&id, &user, &format!("Label {id}")],
        )
        .await;

        id
    }

    /// Inserts a draft release.
    pub async fn release(&self, label: i64) -> i64 {
        let id = next_id();
        let statement = "insert into release (id, label_id, cat, title, review_status, delivery_status) \
                         values ($1, $2, $3, $4, 'draft', 'pending')";
        self.execute(
            statement,
            &[&id, &label, &format!("CAT{id}"), &format!("Release {id}")],
        )
        .await;

        id
    }

    pub async fn set_review_status(&self, release: i64, status: &str) {
        self.execute(
            "update release set review_status = $2 where id = $1",
            &[&release, &status],
        )
        .await;
    }

    pub async fn set_delivery_status(&self, release: i64, status: &str) {
        self.execute(
            "update release set delivery_status = $2 where id = $1",
            &[&release, &status],
        )
        .await;
    }

    pub async fn outlet(&self, name: &str) -> i64 {
        let id = next_id();
        self.execute(
            "insert into outlet (id, name) values ($1, $2)",
            &[&id, &name],
        )
        .await;

        id
    }

    /// Inserts an entry of the distribution queue.
    pub async fn distribution(&self, release: i64, outlet: i64, status: &str) -> i64 {
        let id = next_id();
        let statement =
            "insert into distro_queue (id, release_id, outlet_id, status) values ($1, $2, $3, $4)";
        self.execute(statement, &[&id, &release, &outlet, &status])
            .await;

        id
    }

    pub async fn set_distribution_status(&self, distribution: i64, status: &str) {
        self.execute(
            "update distro_queue set status = $2 where id = $1",
            &[&distribution, &status],
        )
        .await;
    }

    pub async fn track(&self, release: i64) -> i64 {
        let id = next_id();
        let statement = "insert into track (id, release_id, isrc, title) values ($1, $2, $3, $4)";

        self.execute(
            statement,
            &[
                &id,
                &release,
                &format!("XXA01{id:07}"),
                &format!("Track {id}"),
            ],
        )
        .await;

        id
    }

    /// Inserts a payment statement of 10.50 with this status.
    pub async fn payment(&self, user: i64, status: &str) -> i64 {
        let id = next_id();
        let statement = "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) \
                         values ($1, $2, $3, 10.50, 10.50, $4)";
        self.execute(statement, &[&id, &user, &format!("INV-{id}"), &status])
            .await;

        id
    }

    /// Commits `count` ready payment statements in one transaction.
    pub async fn payments(&self, user: i64, count: usize) -> Vec<i64> {
        let ids: Vec<i64> = (0..count).map(|_| next_id()).collect();
        let insert =
            "insert into payment (id, user_id, invoice_number, amount, total_due_usd, status)
                      select id, $2, 'INV', 1, 1, 'ready' from unnest($1::bigint[]) as id";
        self.execute(insert, &[&ids, &user]).await;
        ids
    }
}
