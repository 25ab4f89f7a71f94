//! Checks requests to switch to capture by triggers. Any role can write such a message, so it
//! counts only if its transaction created triggers.
//!
//! An answer holds for all transactions that had ended at its snapshot. However many messages are
//! written, they cost one connection and a bounded number of queries, and delay the stream by at
//! most the time between two queries.

use std::time::Duration;

use postgres_types::Type;
use tokio::time::Instant;
use tokio_postgres::Client;

use crate::capture::client::KeptClient;
use crate::capture::error::CaptureError;
use crate::domain::window::Snapshot;
use crate::sql::primary as sql;

/// The time between two queries. A transaction that is streamed is usually visible to the first
/// one.
const INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct SwitchCheck {
    client: KeptClient,
    last: Option<Makers>,
}

/// The transactions that created the triggers of some tables, at a snapshot.
struct Makers {
    read_at: Instant,
    tables: Vec<u32>,
    snapshot: Snapshot,
    /// The lower 32 bits of their ids.
    transactions: Vec<i64>,
}

impl SwitchCheck {
    pub fn new(url: &str) -> SwitchCheck {
        SwitchCheck {
            client: KeptClient::new(url, None),
            last: None,
        }
    }

    /// Returns whether a transaction created triggers on some of `tables`. Waits until other
    /// sessions see that it has ended.
    pub async fn has_made_triggers(
        &mut self,
        transaction: u32,
        tables: &[u32],
    ) -> Result<bool, CaptureError> {
        loop {
            if let Some(Makers {
                read_at,
                tables: asked,
                snapshot,
                transactions,
            }) = &self.last
            {
                if asked == tables && snapshot.has_ended(transaction) {
                    return Ok(transactions.contains(&i64::from(transaction)));
                }

                tokio::time::sleep_until(*read_at + INTERVAL).await;
            }

            self.last = Some(self.client.run(|client| makers(client, tables)).await?);
        }
    }
}

async fn makers(client: &Client, tables: &[u32]) -> Result<Makers, CaptureError> {
    let row = client
        .query_typed_one(sql::triggers::MAKERS, &[(&tables, Type::OID_ARRAY)])
        .await?;
    Ok(Makers {
        read_at: Instant::now(),
        tables: tables.to_vec(),
        snapshot: Snapshot::from(row.get::<_, &str>("snapshot")),
        transactions: row.get("makers"),
    })
}
