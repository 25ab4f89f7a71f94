//! Judges the platform's tables: existence, columns, privileges, replica identity and publication.

use super::inspection::Inspection;
use crate::config::{CaptureMode, Source};
use crate::domain::table::Table;
use crate::postgres::quote_identifier;
use crate::primary::catalog::{MappedTable, Relation, contains, is_required};
use crate::primary::finding::{Condition, Finding, Fix, FixKind, PRINT, Remedy};
use crate::primary::identity::{self, Goal, Step};
use crate::primary::mapped::reads;
use crate::primary::publication::{self, filtered, unpublished};

/// The most columns of a table that a finding lists.
const MAX_NAMES: usize = 40;

/// Returns the finding for a missing table. A table that only lookups read may be missing: what
/// depends on it is then not looked up.
pub(super) fn missing(source: &Source, table: Table) -> Finding {
    let (schema, name) = source.tables.qualified_name(table);
    let harmless = !table.is_captured() && table != Table::UserAddon;
    let state = if harmless {
        "missing: what depends on it is not looked up"
    } else {
        "missing"
    };

    let remedy = format!(
        "create it, or set source.tables.{}.table to its name; `walhook init` proposes the mapping",
        table.name()
    );
    Finding::fail(format!("table {schema}.{name}"), state, remedy)
        .of(Condition::Table(table))
        .unless(harmless)
        .blocking()
}

/// Judges whether the table has the mapped columns. With `by_wal`, they have to be in the stream;
/// otherwise, triggers have to see them.
pub(super) fn columns(source: &Source, table: Table, root: &Relation, by_wal: bool) -> Finding {
    let subject = format!("table {}", root.qualified());
    let stored = || {
        source
            .tables
            .stored(table)
            .map(|column| (column, source.tables.column(table, column)))
    };

    let named = source.tables.platform_columns(table);
    let (settings, missing): (Vec<String>, Vec<&str>) = named
        .filter(|(_, name)| !contains(&root.columns, name))
        .map(|(setting, name)| (format!("source.tables.{}.{setting}", table.name()), name))
        .unzip();
    if !missing.is_empty() {
        let mut have = root.columns[..root.columns.len().min(MAX_NAMES)].join(", ");
        if root.columns.len() > MAX_NAMES {
            have += ", …";
        }

        let optional = table.optional().filter(|column| {
            let name = source.tables.column(table, column);
            missing.contains(&name)
        });
        let without = optional.map(|column| {
            let key = table.name();
            format!("; without it, set source.tables.{key}.computed.{column} to \"null\"")
        });

        let remedy = format!(
            "add what is missing, or set {} to the platform's names: {have}{}",
            settings.join(", "),
            without.unwrap_or_default()
        );
        return Finding::fail(subject, format!("lacks {}", missing.join(", ")), remedy)
            .of(Condition::Columns(table))
            .unless(!is_required(table))
            .blocking();
    }

    // Logical replication does not send generated columns. Triggers see those that are stored.
    let (generated, kind, reader) = match by_wal {
        true => (&root.generated, "generated", "the WAL lacks"),
        false => (
            &root.virtual_columns,
            "virtual generated",
            "triggers read as null",
        ),
    };

    let mut unseen: Vec<&str> = source
        .tables
        .platform_columns(table)
        .map(|(_, name)| name)
        .collect();
    unseen.retain(|name| contains(generated, name));
    if unseen.is_empty() {
        return Finding::ok(subject, "exists with its columns").of(Condition::Columns(table));
    }

    let computed =
        stored().filter(|(column, name)| contains(generated, name) && table.may_compute(column));
    let computed: Vec<String> = computed
        .map(|(column, _)| format!("source.tables.{}.computed.{column}", table.name()))
        .collect();
    let plain = if by_wal {
        "make them ordinary columns"
    } else {
        "make them stored"
    };

    let remedy = match computed.is_empty() {
        true => plain.to_owned(),
        false => format!(
            "{plain}, or compute the values with {}",
            computed.join(", ")
        ),
    };

    // Triggers go on without the values.
    let condition = if by_wal {
        Condition::Columns(table)
    } else {
        Condition::GeneratedColumns(table)
    };

    Finding::fail(
        subject,
        format!("{reader} its {kind} columns {}", unseen.join(", ")),
        remedy,
    )
    .of(condition)
    .unless(!is_required(table))
    .blocking()
}

/// What values a column must have, if that follows from its type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequiredValues {
    Integers,
    Times,
    Any,
}

impl RequiredValues {
    fn of(column: &str) -> RequiredValues {
        match column {
            "user_id" => RequiredValues::Any,
            "id" => RequiredValues::Integers,
            _ if column.ends_with("_id") => RequiredValues::Integers,
            "period_end" => RequiredValues::Times,
            _ if column.ends_with("_at") => RequiredValues::Times,
            _ => RequiredValues::Any,
        }
    }

    /// Returns whether a type of this category can have such values. Strings are parsed, row by
    /// row. A time may be a number.
    fn fit(self, category: &str) -> bool {
        match self {
            RequiredValues::Integers => matches!(category, "N" | "S"),
            RequiredValues::Times => matches!(category, "D" | "S" | "N"),
            RequiredValues::Any => true,
        }
    }
}

/// Returns a failure for each mapped column that never has the values that are needed.
pub(super) fn types(source: &Source, table: Table, root: &Relation) -> Vec<Finding> {
    let mut findings = Vec::new();

    // A user's id may be anything.
    let columns = source
        .tables
        .stored(table)
        .filter(|_| table != Table::AppUser);
    for column in columns {
        let name = source.tables.column(table, column);
        let values = RequiredValues::of(column);
        let Some(index) = root.columns.iter().position(|have| have == name) else {
            continue;
        };

        if values.fit(&root.categories[index]) || source.tables.maps_values(table, column) {
            continue;
        }

        let needed = if values == RequiredValues::Integers {
            "integers"
        } else {
            "points in time"
        };

        let key = table.name();
        let remedy = match table.may_compute(column) {
            true => format!("compute it in source.tables.{key}.computed.{column}"),
            false => format!("name another column in source.tables.{key}.columns.{column}"),
        };

        let state = format!("{name} is {}, but must have {needed}", root.types[index]);
        let finding = Finding::fail(format!("table {}", root.qualified()), state, remedy);
        findings.push(
            finding
                .of(Condition::Columns(table))
                .unless(!is_required(table))
                .blocking(),
        );
    }

    findings
}

/// Judges whether the role can read the columns that lookups, setup and repairs read. Captured tables
/// arrive in the stream: without a ledger, only releases and rows with computed values are read
/// besides. What only a repair reads is a warning once Walhook `is_set_up`. `role` is quoted.
pub(super) fn privileges(
    source: &Source,
    table: Table,
    root: &Relation,
    is_set_up: bool,
    role: &str,
) -> Vec<Finding> {
    let looked_up =
        !table.is_captured() || table == Table::Release || source.tables.is_computed(table);
    let completed =
        source.capture == CaptureMode::Wal && identity::goal(source, table, root).0 == Goal::Index;
    let is_read = looked_up || completed;
    if !is_read && !source.ledger {
        return Vec::new();
    }

    let name = root.qualified();
    let harmless = !is_required(table) || (!is_read && is_set_up);
    let mut findings = Vec::new();
    let unreadable: Vec<&str> = root
        .columns
        .iter()
        .map(String::as_str)
        .filter(|column| reads(&source.tables, table, column))
        .filter(|column| !contains(&root.readable, column))
        .collect();

    if !unreadable.is_empty() {
        let state = format!("cannot read {}", unreadable.join(", "));
        let columns: Vec<String> = unreadable
            .iter()
            .map(|name| quote_identifier(name))
            .collect();
        let privilege = format!("select ({})", columns.join(", "));

        findings.push(
            Finding::fail(format!("table {name} privilege"), state, PRINT)
                .unless(harmless)
                .blocking()
                .fixed_by(root.grants(&privilege, role)),
        );
    }

    if root.row_security {
        let state = "hides rows from Walhook's role, so owners would not be found";
        let sql = format!(
            "create policy walhook on {} for select to {role} using (true); \
             -- if restrictive policies hide rows too, instead: alter role {role} bypassrls;",
            root.quoted()
        );
        findings.push(
            Finding::fail(format!("table {name} row security"), state, PRINT)
                .unless(harmless)
                .blocking()
                .fixed_by([root.by_owner(FixKind::Other, sql)]),
        );
    }

    findings
}

pub(super) fn replica_identity(source: &Source, mapped: &MappedTable) -> Vec<Finding> {
    let (table, Some(root)) = (mapped.table, mapped.root()) else {
        return Vec::new();
    };

    let subject = format!("replica identity of {}", root.qualified());
    let wanted = identity::wanted(source, table);
    let lacking: Vec<&Relation> = mapped
        .relations
        .iter()
        .filter(|relation| !relation.identifies(&wanted))
        .collect();
    let unmet: Vec<&Relation> = mapped
        .relations
        .iter()
        .filter(|relation| !identity::is_met(source, table, relation))
        .collect();

    let remedy = |relations: &[&Relation]| match relations.iter().all(|relation| relation.owned) {
        true => Remedy::SETUP,
        false => PRINT.into(),
    };

    let (goal, reason) = identity::goal(source, table, root);

    let finding = if !lacking.is_empty() {
        let names: Vec<String> = lacking
            .iter()
            .map(|relation| relation.qualified())
            .collect();
        let partitions = if names == [root.qualified()] {
            String::new()
        } else {
            format!(" in {}", names.join(", "))
        };
        let state = format!(
            "does not cover {}{partitions}, so transitions cannot be detected",
            wanted.join(", ")
        );
        let finding =
            Finding::fail(subject, state, remedy(&unmet)).of(Condition::ReplicaIdentity(table));
        Finding {
            relations: names,
            blocks_setup: lacking.iter().any(|relation| !relation.owned),
            ..finding
        }
    } else {
        let by = match root.identity.as_str() {
            "f" => "full",
            "i" => "index",
            _ => "primary key",
        };

        let state = format!("{by}: covers {}", wanted.join(", "));

        match unmet.is_empty() {
            true => Finding::ok(
                subject,
                reason
                    .map(|reason| format!("{state}, since {reason}"))
                    .unwrap_or(state),
            ),
            false => {
                let goal = if goal == Goal::Full { "full" } else { "index" };
                Finding::warn(
                    subject,
                    format!("{state}, and source.replica_identity is {goal}"),
                    remedy(&unmet),
                )
            }
        }
    };

    let statements = unmet
        .iter()
        .flat_map(|relation| identity_statements(source, table, relation));
    let mut findings = vec![finding.fixed_by(statements)];

    findings.extend(mapped.relations.iter().filter_map(|relation| {
        let state = format!(
            "every UPDATE and DELETE fails, because the table {}",
            relation.rejection()?
        );
        let subject = format!("replica identity of {}", relation.qualified());
        let finding = Finding::fail(subject, state, remedy(&[relation]));
        Some(finding.of(Condition::RejectedUpdates(table)))
    }));

    findings.extend(mapped.relations.iter().filter_map(|relation| {
        let state = identity::refusal(source, table, relation)?;
        let remedy = "remove the obstacle or the columns, or use source.capture = \"trigger\"";
        Some(Finding::fail(format!("table {}", relation.qualified()), state, remedy).blocking())
    }));

    findings
}

/// Returns the statements with which the owner gives a table its replica identity, with the one
/// that it has now: only what setup sets is recorded for teardown.
fn identity_statements(source: &Source, table: Table, relation: &Relation) -> Vec<Fix> {
    if identity::refusal(source, table, relation).is_some() {
        return Vec::new();
    }

    let index = relation.identity_index.as_deref();
    let earlier = identity::named(&relation.identity, index);
    let goal = identity::goal(source, table, relation).0;
    let steps = identity::steps(source, table, relation, goal).into_iter();

    steps
        .map(|step| match step {
            Step::Set(sql) => relation.by_owner(
                FixKind::Locks,
                format!("{} -- was {earlier}", sql.trim_end()),
            ),
            Step::DropIndex(sql) => relation.by_owner(FixKind::Locks, sql),
            Step::CreateIndex(sql) => relation.by_owner(FixKind::Other, sql),
        })
        .collect()
}

/// Judges the publication and whether the role may complete it.
pub(super) fn publication(source: &Source, inspection: &Inspection) -> Finding {
    let finding = published(source, inspection);

    let Some(remedy) = &finding.remedy else {
        return finding;
    };

    let statements = publication::statements(source, inspection);
    if *remedy != Remedy::SETUP || publication::may_change(inspection) {
        return finding.fixed_by(statements);
    }

    let remedy = Some(PRINT.into());
    Finding { remedy, ..finding }
        .blocking()
        .fixed_by(statements)
}

fn published(source: &Source, inspection: &Inspection) -> Finding {
    let tables = &inspection.tables;
    let subject = format!("publication {}", source.publication);
    let Some(publication) = &inspection.publication else {
        let finding = Finding::fail(subject, "missing", Remedy::SETUP).of(Condition::Publication);
        return Finding {
            relations: vec!["any table".to_owned()],
            ..finding
        };
    };

    if !publication.all_operations {
        let finding = Finding::fail(subject, "does not publish every operation", Remedy::SETUP)
            .of(Condition::Publication);
        return Finding {
            relations: vec!["every change".to_owned()],
            ..finding
        };
    }

    let filtered = filtered(tables, publication);
    if !filtered.is_empty() {
        let names: Vec<String> = filtered.iter().map(|root| root.qualified()).collect();
        let quoted: Vec<String> = filtered.iter().map(|root| root.quoted()).collect();
        let name = quote_identifier(&source.publication);
        let tables = quoted.join(", ");

        // Setup does not remove a filter that somebody has set.
        let remedy = Remedy::Setup {
            first: Some(format!("`alter publication {name} drop table {tables}`")),
        };
        let state = format!("has a row filter (`where`) for {}", names.join(", "));
        let finding = Finding::fail(subject, state, remedy)
            .of(Condition::Publication)
            .blocking();

        return Finding {
            relations: names
                .iter()
                .map(|name| format!("every row of {name}"))
                .collect(),
            ..finding
        };
    }

    let unpublished = unpublished(tables, Some(publication));
    if !unpublished.is_empty() {
        let relations: Vec<String> = unpublished
            .iter()
            .map(|(_, root)| root.qualified())
            .collect();
        let harmless = unpublished.iter().all(|(table, _)| !is_required(*table));
        let finding = Finding::fail(
            subject,
            format!("lacks {}", relations.join(", ")),
            Remedy::SETUP,
        );

        return Finding {
            relations,
            ..finding.of(Condition::PublishedTables).unless(harmless)
        };
    }

    if !publication.via_root {
        return Finding::fail(
            subject,
            "does not publish partitions under the partitioned table's own name",
            Remedy::SETUP,
        );
    }

    if !publication.stored_generated {
        let state = "lacks stored generated columns: a table that gets one would reject every UPDATE and DELETE";
        return Finding::fail(subject, state, Remedy::SETUP);
    }

    Finding::ok(
        subject,
        format!(
            "covers {} tables",
            tables
                .iter()
                .filter(|mapped| mapped.root().is_some())
                .count()
        ),
    )
}
