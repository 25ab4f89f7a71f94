//! Judges the slot on the standbys that `source.url` names: a failover to one that lacks it, or has
//! an old one, ends in a gap.

use std::time::Duration;

use futures_util::future::join_all;

use crate::config::Source;
use crate::postgres::{ConnectError, Target};
use crate::primary::catalog::{self, StandbySlot};
use crate::primary::error::Result;
use crate::primary::finding::Finding;

/// How long a standby may take to answer. One that is down must not delay the report for longer.
const ANSWER: Duration = Duration::from_secs(5);

/// Inspects the standbys among the hosts of `url`, all at the same time. No findings if it names
/// only one host.
pub(super) async fn inspect(source: &Source, url: &str) -> Result<Vec<Finding>> {
    let hosts = Target::parse(url)?.hosts();
    if hosts.len() == 1 {
        return Ok(Vec::new());
    }

    let inspected = hosts.iter().map(async |host| {
        let subject = format!("slot {} on {}", source.slot, host.address());

        match tokio::time::timeout(ANSWER, slot(host, &source.slot)).await {
            Ok(Ok(slot)) => slot.map(|slot| judge(subject, &source.slot, &slot)),
            Ok(Err(error)) => Some(unknown(subject, &error.to_string())),
            Err(_) => Some(unknown(subject, &ConnectError::Timeout(ANSWER).to_string())),
        }
    });

    Ok(join_all(inspected).await.into_iter().flatten().collect())
}

/// Reads the slot's state. None if the server is not a standby.
async fn slot(host: &Target, name: &str) -> Result<Option<StandbySlot>> {
    catalog::standby_slot(&host.connect().await?, name).await
}

fn unknown(subject: String, error: &str) -> Finding {
    Finding::warn(
        subject,
        format!("unknown: {error}"),
        "start the server, or remove it from source.url",
    )
}

fn judge(subject: String, name: &str, slot: &StandbySlot) -> Finding {
    match slot {
        StandbySlot { exists: false, .. } => Finding::warn(
            subject,
            "missing: a failover to this server would end in a gap",
            "on this server, set sync_replication_slots, hot_standby_feedback, primary_slot_name and a dbname in primary_conninfo, \
             then wait until the slot is synchronized",
        ),
        StandbySlot { synced: false, .. } => Finding::warn(
            subject,
            "not synchronized: it was created on this server, perhaps while it was the primary, and PostgreSQL does not replace it. It \
             retains WAL here, and a failover to this server can end in a gap",
            format!("on this server, `select pg_drop_replication_slot('{name}')`"),
        ),
        StandbySlot {
            invalidation_reason: Some(reason),
            ..
        } => Finding::warn(
            subject,
            format!("invalidated ({reason}): a failover to this server would end in a gap"),
            "wait until PostgreSQL has replaced it",
        ),
        StandbySlot {
            temporary: true, ..
        } => Finding::warn(
            subject,
            "not synchronized yet: a failover to this server would end in a gap",
            "wait, or run `select pg_log_standby_snapshot()` on the primary",
        ),
        _ => Finding::ok(subject, "synchronized"),
    }
}
