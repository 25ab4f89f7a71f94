//! Statements that disable webhooks that keep failing, or warn their owners.

use deadpool_postgres::Transaction;
use postgres_types::ToSql;
use uuid::Uuid;

use super::Result;
use super::statement::Statements;
use crate::domain::event::UserId;
use crate::domain::notice;
use crate::domain::webhook::Failure;
use crate::sql::store as sql;

/// The `disabled_reason` and the kind of error of webhooks whose receiver is gone.
const GONE: &str = "gone";

/// A webhook that keeps failing or whose receiver is gone, and why.
#[derive(Clone, Copy, Debug)]
pub struct Failing {
    pub webhook: Uuid,
    pub failure: Failure,
    /// Whether the receiver is gone, so that the webhook is disabled regardless of its failures.
    pub is_gone: bool,
    /// Failures that count towards the threshold.
    pub failures: u64,
    pub threshold: u32,
}

/// Inserts a warning for the webhook's owner.
pub async fn warn(transaction: &Transaction<'_>, failing: &Failing) -> Result<()> {
    failing
        .notify(transaction, sql::webhook::WARN, &[])
        .await
        .map(drop)
}

/// Disables the webhook and inserts a notice for its owner, who is returned. Does nothing if the
/// webhook is inactive. Its pending deliveries are cancelled afterwards
/// ([`Store::cancel_pending`](super::Store::cancel_pending)).
pub async fn disable(transaction: &Transaction<'_>, failing: &Failing) -> Result<Option<UserId>> {
    failing
        .notify(
            transaction,
            sql::webhook::DISABLE,
            &[&failing.disabled_reason()],
        )
        .await
}

impl Failing {
    /// Returns the reason as it is logged.
    pub fn describe(&self) -> String {
        if self.is_gone {
            notice::GONE.to_owned()
        } else {
            self.failure.describe()
        }
    }

    /// Returns the kind of error for metrics and notices: of the last failure, as in the attempt
    /// log, or `gone`.
    pub fn error_kind(&self) -> &'static str {
        if self.is_gone {
            GONE
        } else {
            self.failure.kind.as_str()
        }
    }

    /// Returns the reason as the webhook shows it.
    fn disabled_reason(&self) -> String {
        match self.is_gone {
            true => GONE.to_owned(),
            false => format!("{} ({})", self.failure.describe(), self.failure.kind),
        }
    }

    async fn notify(
        &self,
        transaction: &Transaction<'_>,
        sql: &str,
        more: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<UserId>> {
        let reason = self.describe();
        let kind = self.error_kind();
        let failures = self.failures as i64;
        let threshold = i64::from(self.threshold);
        let notice = Uuid::now_v7();

        let first: [&(dyn ToSql + Sync); 6] = [
            &self.webhook,
            &reason,
            &kind,
            &notice,
            &failures,
            &threshold,
        ];

        transaction
            .fetch_optional(sql, &[&first[..], more].concat())
            .await
    }
}
