//! The primary: server, role, tables, publication, slot.

mod standbys;

use jiff::Timestamp;
use tokio_postgres::Client;

use super::{Report, Verdict, postgres, unreachable};
use crate::capture::CaptureError;
use crate::config::{CaptureMode, Source};
use crate::domain::table::Table;
use crate::primary::catalog::{self, MINIMUM_VERSION, Relation, Server, is_required};
use crate::primary::identity;

/// What the server is, where it could be asked.
pub(crate) async fn check(report: &mut Report, source: &Source, url: &str) -> Option<Server> {
    let client = match postgres::connect(url).await {
        Ok(client) => client,
        Err(error) => {
            unreachable(report, "primary", error, url);
            return None;
        }
    };
    let before = Timestamp::now();
    let server = match catalog::server(&client).await {
        Ok(server) => server,
        Err(error) => {
            unreachable(report, "primary", error, url);
            return None;
        }
    };
    report.ok("primary", format!("database {} as {}", server.database, server.role));
    report.clock("primary clock", server.now, before);
    self::server(report, source, &server);
    let looked = match source.capture {
        CaptureMode::Wal => objects(report, source, &client).await,
        CaptureMode::Trigger => super::triggers::check(report, source, &client).await,
    };
    if let Err(error) = looked {
        report.fail("primary catalog", error.to_string(), "run `walhook check` again");
    }
    Some(server)
}

fn server(report: &mut Report, source: &Source, server: &Server) {
    let version = format!("PostgreSQL {}", server.version / 10_000);
    if server.version >= MINIMUM_VERSION {
        report.ok("version", version);
    } else {
        report.fail("version", version, "14 is the first that is supported: upgrade");
    }
    if server.in_recovery {
        report.fail("primary role", "a standby", "set source.url to the primary");
    }
    if source.capture == CaptureMode::Trigger {
        return;
    }
    if server.wal_level == "logical" {
        report.ok("wal_level", "logical");
    } else {
        report.fail("wal_level", server.wal_level.as_str(), "set wal_level = logical and restart the server");
    }
    if server.may_replicate {
        report.ok("replication privilege", format!("{} may replicate", server.role));
    } else {
        let mend = format!("`alter role \"{}\" replication` as a superuser", server.role);
        report.fail("replication privilege", format!("{} may not replicate", server.role), mend);
    }
    limits(report, server);
}

/// What the server does with a slot or a reader that it does not hear from.
fn limits(report: &mut Report, server: &Server) {
    const SHORT_MILLISECONDS: i64 = 5_000;
    const DAY_SECONDS: i64 = 86_400;
    if server.slot_keep == "-1" {
        report.warn(
            "max_slot_wal_keep_size",
            "unlimited: while Walhook is away the log grows until the disk is full",
            "set it to what the disk can spare, and watch walhook_capture_lag_seconds",
        );
    } else {
        report.ok("max_slot_wal_keep_size", server.slot_keep.as_str());
    }
    match server.sender_timeout {
        0 => report.warn(
            "wal_sender_timeout",
            "0: a reader whose machine is gone keeps the slot until TCP gives it up, and no other takes over",
            "set it to the default, 60s",
        ),
        short @ ..SHORT_MILLISECONDS => report.warn(
            "wal_sender_timeout",
            format!("{short} ms: a short stall of this machine or of the network ends the connection"),
            "set it to 10s or more",
        ),
        fair => report.ok("wal_sender_timeout", format!("{} s", fair / 1_000)),
    }
    match server.idle_slot_timeout {
        None | Some(0) => {}
        Some(short @ ..DAY_SECONDS) => report.warn(
            "idle_replication_slot_timeout",
            format!("{short} s: when Walhook is away for longer, its slot is invalidated and changes are lost"),
            "set it to 0, or to more than any pause can last",
        ),
        Some(fair) => report.ok("idle_replication_slot_timeout", format!("{fair} s")),
    }
}

async fn objects(report: &mut Report, source: &Source, client: &Client) -> Result<(), CaptureError> {
    let mut published = Vec::new();
    for table in Table::ALL {
        if !source.follows(*table) {
            continue;
        }
        let relations = catalog::relations(client, source, *table).await?;
        if self::table(report, source, *table, &relations) {
            published.extend(relations.into_iter().next());
        }
    }
    publication(report, source, client, &published).await?;
    slot(report, source, client).await?;
    standbys::check(report, source, client).await
}

/// Whether the table exists.
fn table(report: &mut Report, source: &Source, table: Table, relations: &[Relation]) -> bool {
    let (schema, name) = source.tables.qualified_name(table);
    let line = format!("table {schema}.{name}");
    let severity = if is_required(table) { Verdict::Fail } else { Verdict::Warn };
    let key = table.name();
    let Some(root) = relations.first() else {
        report.add(severity, line, "missing", format!("name the platform's own in source.tables.{key}.table"));
        return false;
    };
    let column = |reference: &'static str| source.tables.column(table, reference);
    let lacks = |have: &[String]| -> Vec<&str> {
        let wanted = source.tables.stored(table).map(column);
        wanted.filter(|wanted| !have.iter().any(|have| have == wanted)).collect()
    };
    let missing = lacks(&root.columns);
    if !missing.is_empty() {
        let mend = format!("name the platform's own in source.tables.{key}.columns");
        report.add(severity, line.as_str(), format!("lacks {}", missing.join(", ")), mend);
    } else {
        report.ok(line.as_str(), "there, with its columns");
    }
    identity_of(report, source, table, relations);
    let unreadable: Vec<&str> = lacks(&root.readable).into_iter().filter(|column| !missing.contains(column)).collect();
    // Captured tables come by the log, except the release: others refer to it.
    let looked_up = !table.is_captured() || table == Table::Release || source.tables.is_computed(table);
    if looked_up && !unreadable.is_empty() {
        let mend = format!("`grant select on {} to` our role", root.quoted());
        report.add(severity, format!("{line} privilege"), format!("cannot read {}", unreadable.join(", ")), mend);
    }
    if looked_up && root.row_security {
        report.add(
            severity,
            format!("{line} row security"),
            "hides rows from our role: owners would not be found",
            "give the role `bypassrls`, or a policy that shows it every row",
        );
    }
    true
}

fn identity_of(report: &mut Report, source: &Source, table: Table, relations: &[Relation]) {
    let wanted = identity::wanted(source, table);
    let lacking: Vec<String> =
        relations.iter().filter(|relation| !relation.identifies(&wanted)).map(Relation::qualified).collect();
    let Some(first) = relations.first() else { return };
    let name = format!("replica identity of {}", first.qualified());
    if lacking.is_empty() {
        let by = match first.identity.as_str() {
            "f" => "full",
            "i" => "index",
            _ => "primary key",
        };
        let text = format!("{by}: covers {}", wanted.join(", "));
        let (goal, reason) = identity::goal(source, first);
        if relations.iter().all(|relation| identity::is_met(source, relation)) {
            report.ok(name, reason.map(|reason| format!("{text}, since {reason}")).unwrap_or(text));
        } else {
            let wish = if goal == identity::Goal::Full { "full" } else { "index" };
            report.warn(name, format!("{text}, and source.replica_identity is {wish}"), "run `walhook setup`");
        }
        return;
    }
    let mend =
        format!("run `walhook setup`, or set full or an index over {} on {}", wanted.join(", "), lacking.join(", "));
    report.fail(name, format!("does not cover {}", wanted.join(", ")), mend);
}

async fn publication(
    report: &mut Report,
    source: &Source,
    client: &Client,
    published: &[Relation],
) -> Result<(), CaptureError> {
    let name = format!("publication {}", source.publication);
    let Some(found) = catalog::publication(client, &source.publication).await? else {
        report.fail(name, "missing", "run `walhook setup`");
        return Ok(());
    };
    let missing: Vec<String> =
        published.iter().filter(|relation| !found.covers(relation)).map(Relation::qualified).collect();
    if !missing.is_empty() {
        report.fail(name, format!("lacks {}", missing.join(", ")), "run `walhook setup`");
    } else if !found.options_right {
        let text = "does not publish every operation by the partitioned table's own name";
        report.fail(name, text, "run `walhook setup`");
    } else {
        report.ok(name, format!("covers {} tables", published.len()));
    }
    Ok(())
}

async fn slot(report: &mut Report, source: &Source, client: &Client) -> Result<(), CaptureError> {
    let name = format!("slot {}", source.slot);
    let Some(slot) = catalog::slot(client, &source.slot).await? else {
        report.fail(name, "missing", "run `walhook setup`");
        return Ok(());
    };
    let status = slot.wal_status.clone().unwrap_or_else(|| "unknown".into());
    if let Some(found) = slot.foreign() {
        report.fail(name, format!("is {found}"), "set source.slot to another name");
    } else if slot.is_lost() {
        report.fail(name, "invalidated: the log it needs is gone", "run `walhook repair`");
    } else if status == "unreserved" {
        let mend = "start `walhook run`, or raise max_slot_wal_keep_size";
        report.warn(name, "about to be invalidated: it is further behind than max_slot_wal_keep_size", mend);
    } else {
        if source.failover && slot.failover == Some(false) {
            let mend = "with `walhook run` stopped, `ALTER_REPLICATION_SLOT name (FAILOVER true)` over a replication connection";
            report.warn(
                format!("{name} failover"),
                "not carried over to standbys: a failover would lose its place",
                mend,
            );
        }
        let reader = slot.active_pid.map_or("nobody reads it".to_owned(), |pid| format!("read by process {pid}"));
        report.ok(name, format!("wal_status {status}, {reader}"));
    }
    Ok(())
}
