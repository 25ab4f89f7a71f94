//! The store: there, up to date, apart from the primary's database, and in step with the slot.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Report, unreachable};
use crate::config::Source;
use crate::primary::catalog::Server;
use crate::store::capture::Identity;
use crate::store::migrate::{self, Incompatibility, Schema};
use crate::store::{Result, Store};

pub(crate) async fn check(report: &mut Report, source: &Source, url: &str, primary: Option<&Server>) {
    match look(report, source, url, primary).await {
        Ok(()) => {}
        Err(error) => unreachable(report, "store", error, url),
    }
}

async fn look(report: &mut Report, source: &Source, url: &str, primary: Option<&Server>) -> Result<()> {
    let store = Store::open(url, 1)?;
    let before = Timestamp::now();
    let place = store.identity().await?;
    report.ok("store", format!("database {}", place.database));
    report.clock("store clock", place.now, before);
    if let Some(primary) = primary {
        let same = place.system_identifier == primary.system_identifier && place.database == primary.database;
        if same {
            report.warn(
                "store's place",
                "the platform's own database: what Walhook writes goes through its slot's decoding",
                "set store.url to a database of its own, on the same server or another",
            );
        } else {
            report.ok("store's place", "a database of its own");
        }
    }
    commits(report, &place);
    let schema = migrate::schema(url).await?;
    match (schema, schema.incompatibility()) {
        (_, Some(Incompatibility { problem, fix: mend })) => {
            report.fail("store schema", problem, mend);
            return Ok(());
        }
        (Schema::Newer { found, known }, None) => {
            report.ok(
                "store schema",
                format!("version {found}, a later build's; this one knows {known} and can work on it"),
            );
        }
        _ => report.ok("store schema", "up to date"),
    }
    let without = store.tables_without_partitions(before.to_zoned(TimeZone::UTC).date()).await?;
    if without.is_empty() {
        report.ok("partitions", "every day has its own");
    } else {
        report.warn(
            "partitions",
            format!("rows of {} are in the default partition: days have none of their own", without.join(", ")),
            "a running `walhook run` moves them within the hour; if they stay, its log and /readyz say why",
        );
    }
    match store.checkpoint(&source.slot).await? {
        Some(checkpoint) => report.ok("checkpoint", format!("at {}", checkpoint.progress)),
        None => report.fail("checkpoint", format!("none for slot {}", source.slot), "run `walhook setup`"),
    }
    let gaps = store.open_gaps(&source.slot).await?;
    if gaps.is_empty() {
        report.ok("gaps", "none");
    }
    for gap in gaps {
        report.fail(format!("gap {}", gap.reason), gap.detail, "run `walhook repair`");
    }
    Ok(())
}

/// How the store keeps what it has committed.
fn commits(report: &mut Report, place: &Identity) {
    let line = "store's synchronous_commit";
    let mend =
        format!("`alter role \"{}\" in database \"{}\" set synchronous_commit = on`", place.role, place.database);
    match (place.synchronous_commit.as_str(), place.synchronous) {
        ("off", _) => report.warn(
            line,
            "off: events are flushed all the same, but a crash of the store loses the last attempts and edits of webhooks",
            mend,
        ),
        (value @ ("local" | "remote_write"), true) => report.warn(
            line,
            format!("{value}: a failover of the store can lose events that the primary no longer has"),
            mend,
        ),
        (value, _) => report.ok(line, value),
    }
}
