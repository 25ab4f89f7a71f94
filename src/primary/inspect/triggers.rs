//! Judges capture by triggers: the triggers on the tables, their functions, the outbox and recorded
//! failures.

use super::inspection::Triggers;
use crate::domain::table::Table;
use crate::postgres::quote_identifier;
use crate::primary::catalog::{MappedTable, Relation, Server};
use crate::primary::finding::{Condition, Finding, Fix, FixKind, PRINT, Remedy};
use crate::primary::triggers::catalog::TableTrigger;

/// Judges the triggers of a table that exists. `role` is quoted.
pub(super) fn judge_table(
    mapped: &MappedTable,
    root: &Relation,
    triggers: &Triggers,
    role: &str,
) -> Vec<Finding> {
    let comparison = &triggers.comparison;
    let subject = format!("triggers of {}", root.qualified());
    let table = mapped.table;

    let of_table = |triggers: &[TableTrigger]| -> Vec<TableTrigger> {
        triggers
            .iter()
            .filter(|trigger| trigger.table == table)
            .cloned()
            .collect()
    };

    let missing = of_table(&comparison.missing);
    let disabled = of_table(&comparison.disabled);
    let ordinary = of_table(&comparison.ordinary);
    let outdated = comparison
        .outdated
        .iter()
        .any(|function| function.table == table);

    let remedy =
        |triggers: &[TableTrigger]| match triggers.iter().all(|trigger| trigger.relation.owned) {
            true => Remedy::SETUP,
            false => PRINT.into(),
        };

    let names = |triggers: &[TableTrigger]| {
        triggers
            .iter()
            .map(TableTrigger::to_string)
            .collect::<Vec<_>>()
            .join(", ")
    };

    let mut findings = vec![if !missing.is_empty() {
        let has_rows = missing
            .iter()
            .any(|trigger| triggers.unguarded.contains(&trigger.relation.oid));
        let condition = if has_rows {
            Condition::Triggers(table)
        } else {
            Condition::TriggersOfEmpty(table)
        };
        Finding::fail(
            subject,
            format!("missing: {}", names(&missing)),
            Remedy::SETUP,
        )
        .of(condition)
    } else if outdated {
        Finding::fail(
            subject,
            "made for another mapping or another table",
            Remedy::SETUP,
        )
        .of(Condition::TriggerFunction(table))
    } else if !disabled.is_empty() {
        let state = format!("disabled: {}", names(&disabled));
        Finding::fail(subject, state, remedy(&disabled)).of(Condition::Triggers(table))
    } else if !ordinary.is_empty() {
        Finding::warn(
            subject,
            "do not fire where session_replication_role is replica",
            remedy(&ordinary),
        )
    } else {
        Finding::ok(
            subject,
            format!("exist, on {} tables", mapped.relations.len()),
        )
    }];

    findings.extend(trigger_privilege(table, &missing, role));
    findings
}

fn trigger_privilege(table: Table, missing: &[TableTrigger], role: &str) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    let mut relations: Vec<&Relation> = missing.iter().map(|trigger| &trigger.relation).collect();

    relations.dedup_by_key(|relation| relation.oid);

    for relation in relations {
        let name = relation.qualified();

        if !relation.may_trigger {
            let state = "Walhook's role may not create triggers on it";
            findings.push(
                Finding::fail(format!("table {name} trigger privilege"), state, PRINT)
                    .blocking()
                    .fixed_by(relation.grants("trigger", role)),
            );
        } else if !relation.owned {
            let state = "belongs to another role: where a session sets session_replication_role = replica, the triggers do not fire";
            let remedy = "after `walhook setup`, let a DBA run what `walhook setup --print` prints";
            let finding = Finding::warn(format!("table {name} owner"), state, remedy);
            findings.push(finding.of(Condition::Triggers(table)));
        }
    }

    findings
}

/// Judges the outbox. `server` is none if only the schema is judged.
pub(super) fn judge_outbox(triggers: &Triggers, server: Option<&Server>) -> Vec<Finding> {
    let state = &triggers.state;
    if !state.is_installed() {
        let mut findings = vec![Finding::fail("outbox", "missing", Remedy::SETUP)];

        if let Some(server) = server.filter(|server| !server.may_create) {
            let sql = format!(
                "grant create on database {} to {};",
                quote_identifier(&server.database),
                quote_identifier(&server.role)
            );
            let grant = Fix::new(&server.database_owner, FixKind::Grants, sql);

            findings.push(
                Finding::fail(
                    "outbox privilege",
                    format!("{} may not create a schema", server.role),
                    PRINT,
                )
                .blocking()
                .fixed_by([grant]),
            );
        }

        return findings;
    }

    if !state.missing.is_empty() {
        return vec![Finding::fail(
            "outbox",
            format!("lacks {}", state.missing.join(", ")),
            Remedy::SETUP,
        )];
    }

    let mut findings = vec![match state.usable {
        true => Finding::ok("outbox", "readable and clearable"),
        false => {
            let remedy = "run `walhook setup` as the role that created walhook_capture.outbox";
            Finding::fail(
                "outbox",
                "cannot be read or cleared by Walhook's role",
                remedy,
            )
            .blocking()
        }
    }];

    if !state.guarded {
        let finding = Finding::fail(
            "outbox trigger",
            "missing, so emptying the outbox would go unnoticed",
            Remedy::SETUP,
        );
        findings.push(finding.of(Condition::OutboxTrigger));
    }

    if !triggers.altered.is_empty() {
        let state = format!(
            "disabled, enabled or dropped since setup: {}",
            triggers.altered.join(", ")
        );
        findings
            .push(Finding::fail("triggers", state, Remedy::REPAIR).of(Condition::OutboxTrigger));
    }

    findings.push(match &triggers.failures {
        None => Finding::ok("trigger failures", "none"),
        Some((count, last)) => {
            let state = format!("{count}, the last at {}", explained(last.clone()));
            Finding::fail("trigger failures", state, Remedy::REPAIR)
        }
    });

    findings
}

/// Returns the reason of a trigger's failure, or a text that none was recorded.
pub(crate) fn explained(reason: Option<String>) -> String {
    reason.unwrap_or_else(|| {
        "a statement that could not record its reason; the server log may have it".to_owned()
    })
}
