//! Capture by triggers: the tables, the triggers on them, the outbox and what failed.

use tokio_postgres::Client;

use super::{Report, Verdict};
use crate::capture::CaptureError;
use crate::config::Source;
use crate::domain::table::Table;
use crate::primary::triggers::catalog::{self, Comparison, Watched};
use crate::repair::watch;

pub(crate) async fn check(report: &mut Report, source: &Source, client: &Client) -> Result<(), CaptureError> {
    let watched = catalog::watched(client, source).await?;
    let comparison = catalog::compare(client, &watched).await?;
    for table in &watched {
        self::table(report, source, table, &comparison);
    }
    outbox(report, client).await?;
    // A slot that nobody reads keeps the log.
    if crate::primary::catalog::slot(client, &source.slot).await?.is_some() {
        let mend = "start `walhook run`: it makes the switch, and drops the slot then";
        report.warn(format!("slot {}", source.slot), "there, though triggers capture", mend);
    }
    Ok(())
}

fn table(report: &mut Report, source: &Source, watched: &Watched, comparison: &Comparison) {
    let (schema, name) = source.tables.qualified_name(watched.table);
    let line = format!("table {schema}.{name}");
    let Some(root) = watched.relations.first() else {
        let mend = format!("name the platform's own in source.tables.{}.table", watched.table.name());
        return report.fail(line, "missing", mend);
    };
    let function = match &watched.function {
        Ok(function) => function,
        Err(problem) => return report.fail(line, problem.as_str(), "then run `walhook setup`"),
    };
    let ours = |lacking: &catalog::Lacking| lacking.function == function.name;
    let name = format!("triggers of {}", root.qualified());
    let on = |triggers: &[catalog::Lacking]| -> Vec<String> {
        triggers
            .iter()
            .filter(|trigger| ours(trigger))
            .map(|trigger| format!("{} of {}", trigger.event.trigger_name(), trigger.relation.qualified()))
            .collect()
    };
    let (lacking, disabled, ordinary) = (on(&comparison.lacking), on(&comparison.disabled), on(&comparison.ordinary));
    if !lacking.is_empty() {
        report.fail(name, format!("missing: {}", lacking.join(", ")), "run `walhook setup`");
    } else if !disabled.is_empty() {
        report.fail(name, format!("disabled: {}", disabled.join(", ")), "`alter table … enable always trigger …`");
    } else if comparison.outdated.iter().any(|outdated| outdated.name == function.name) {
        report.fail(name, "made for another mapping or another table", "run `walhook setup`");
    } else if !ordinary.is_empty() {
        let text = "do not fire where session_replication_role is replica";
        report.warn(name, text, "`alter table … enable always trigger …` as the table's owner");
    } else {
        report.ok(name, format!("there, on {} tables", watched.relations.len()));
    }
    readable(report, source, watched, root);
}

fn readable(report: &mut Report, source: &Source, watched: &Watched, root: &catalog::Relation) {
    // Captured tables come by their triggers, except the release: others refer to it.
    if watched.table.is_captured() && watched.table != Table::Release && !source.tables.is_computed(watched.table) {
        return;
    }
    let wanted = source.tables.stored(watched.table).map(|column| source.tables.column(watched.table, column));
    let unreadable: Vec<&str> = wanted.filter(|column| !root.readable.iter().any(|have| have == column)).collect();
    let line = format!("table {}", root.qualified());
    if !unreadable.is_empty() {
        let mend = format!("`grant select on {} to` our role", root.quoted());
        report.fail(format!("{line} privilege"), format!("cannot read {}", unreadable.join(", ")), mend);
    }
    if root.row_security {
        let mend = "give the role `bypassrls`, or a policy that shows it every row";
        report.add(
            Verdict::Fail,
            format!("{line} row security"),
            "hides rows from our role: owners would not be found",
            mend,
        );
    }
}

async fn outbox(report: &mut Report, client: &Client) -> Result<(), CaptureError> {
    let state = catalog::state(client).await?;
    if !state.installed {
        report.fail("outbox", "missing", "run `walhook setup`");
        return Ok(());
    }
    if !state.missing.is_empty() {
        report.fail("outbox", format!("lacks {}", state.missing.join(", ")), "run `walhook setup`");
        return Ok(());
    }
    match state.usable {
        true => report.ok("outbox", "can be read and cleared"),
        false => report.fail(
            "outbox",
            "cannot be read or cleared by our role",
            "run `walhook setup` as the role that made it",
        ),
    }
    if !state.paired {
        let text = "does not pair rows that are deleted and inserted in one transaction: they raise events as new ones";
        report.warn("outbox", text, "run `walhook setup`");
    }
    match watch::failures(client).await? {
        None => report.ok("trigger failures", "none"),
        Some((count, last)) => {
            report.fail(
                "trigger failures",
                format!("{count}, the last at {}", watch::explained(last)),
                "run `walhook repair`",
            );
        }
    }
    Ok(())
}
