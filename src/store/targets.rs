//! The webhooks that deliveries go to.

use tokio_postgres::Row;
use uuid::Uuid;

use super::keys::{sealed, sealed_keys};
use super::statement::column;
use super::{Result, Store};
use crate::domain::webhook::SealedTarget;
use crate::postgres::ANSWER_TIMEOUT;
use crate::sql::store as sql;

impl Store {
    /// Reads those of `webhooks` that exist.
    pub async fn targets(&self, webhooks: &[Uuid]) -> Result<Vec<SealedTarget>> {
        self.in_time(ANSWER_TIMEOUT, self.read_targets(webhooks))
            .await
    }

    async fn read_targets(&self, webhooks: &[Uuid]) -> Result<Vec<SealedTarget>> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(sql::webhook::TARGETS).await?;
        let rows = connection.query(&statement, &[&webhooks]).await?;
        rows.iter().map(target).collect()
    }
}

/// Reads the webhook that a row describes.
pub(super) fn target(row: &Row) -> Result<SealedTarget> {
    Ok(SealedTarget {
        webhook: column(row, "id")?,
        active: column(row, "active")?,
        url: column(row, "url")?,
        secret: column(row, "secret")?,
        secret_key_id: column(row, "secret_key_id")?,
        headers: sealed(row, "headers", "headers_key_id")?,
        keys: sealed_keys(row)?,
        activation: column(row, "activation")?,
    })
}
