//! Surveys the platform's schema for `walhook init` and `walhook check`: reads the catalog and the planner's statistics,
//! and samples columns of which the statistics say too little.

use std::collections::HashMap;
use std::time::Duration;

use postgres_types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::catalog;
use super::error::Result;
use super::mapped::condition_on_this;
use crate::config::Source;
use crate::domain::survey::{MAX_VALUES, Reference, Survey, SurveyedColumn, SurveyedTable};
use crate::domain::table::Table;
use crate::postgres::{self, fill, logged, quote_identifier, quote_qualified, row::row};
use crate::sql::primary as sql;

/// The most tables that are surveyed.
const MAX_TABLES: i64 = 2_000;
/// The most columns whose values are sampled.
const MAX_SAMPLES: usize = 200;
/// The longest time for all samples. What was not sampled by then is proposed by its name.
const SAMPLES_WITHIN: Duration = Duration::from_secs(60);
/// The statistics are complete if the values they list have this share of the rows.
const COMPLETE: f64 = 0.999;

/// The settings are local to the transaction: a pooler may assign the session to another client.
const BEGIN: &str = "begin read only; set local statement_timeout = '5s'; set local lock_timeout = '1s'; \
                     set local datestyle = 'ISO'; set local search_path = pg_catalog";

/// Words in the names of columns whose values are statuses, kinds, outlets or add-ons.
const TELLING: [&str; 32] = [
    "stat",
    "state",
    "phase",
    "stage",
    "type",
    "kind",
    "action",
    "operation",
    "sever",
    "level",
    "risk",
    "priority",
    "review",
    "moderation",
    "approv",
    "ship",
    "deliver",
    "distribut",
    "feature",
    "addon",
    "add_on",
    "module",
    "role",
    "takedown",
    "store",
    "outlet",
    "dsp",
    "channel",
    "shop",
    "retail",
    "partner",
    "code",
];

/// Columns of small tables that say what a key means.
const LABELS: [&str; 6] = ["code", "name", "label", "slug", "title", "status"];

row! {
    struct FoundTable {
        oid: u32,
        schema: String,
        name: String,
        rows: Option<i64>,
    }
}

row! {
    struct FoundColumn {
        relation: u32,
        name: String,
        type_name: String,
        category: String,
        not_null: bool,
        generated: bool,
        readable: bool,
        is_key: bool,
        is_unique: bool,
        foreign_schema: Option<String>,
        foreign_table: Option<String>,
        foreign_column: Option<String>,
        labels: Vec<String>,
        checks: Vec<String>,
        comment: Option<String>,
        common: Vec<Option<String>>,
        frequencies: Vec<f32>,
        null_fraction: f32,
    }
}

/// Surveys the database at `url`, in read-only transactions.
pub async fn survey(url: &str) -> Result<Survey> {
    let client = postgres::connect(url).await?;
    let server = catalog::server(&client).await?;

    let tables = tables(&client).await?;
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let columns = read(&client, sql::survey::COLUMNS, &[(&oids, Type::OID_ARRAY)]).await?;

    let mut by_table: HashMap<u32, Vec<SurveyedColumn>> = HashMap::new();
    let mut incomplete: Vec<(u32, String)> = Vec::new();

    for found in columns.iter().map(FoundColumn::from) {
        if found.wants_sample() {
            incomplete.push((found.relation, found.name.clone()));
        }

        let columns = by_table.entry(found.relation).or_default();
        columns.push(found.into());
    }

    let mut survey = Survey {
        database: server.database,
        role: server.role,
        wal_level: server.wal_level,
        tables: Vec::new(),
    };

    let started_at = std::time::Instant::now();
    incomplete.truncate(MAX_SAMPLES);

    for table in tables {
        let mut columns = by_table.remove(&table.oid).unwrap_or_default();

        for column in &mut columns {
            let is_wanted = incomplete
                .iter()
                .any(|(oid, name)| *oid == table.oid && *name == column.name);
            if is_wanted && started_at.elapsed() < SAMPLES_WITHIN {
                sample(&client, &table, column, "true").await?;
            }
        }

        survey.tables.push(SurveyedTable {
            schema: table.schema,
            name: table.name,
            rows: table.rows,
            columns,
        });
    }

    add_meanings(&client, &mut survey).await?;
    Ok(survey)
}

/// Surveys the values of mapped columns, in read-only transactions. Columns that are not found are
/// left out. Rows are those that meet their table's condition.
pub async fn survey_columns(
    url: &str,
    source: &Source,
    columns: &[(Table, &'static str)],
) -> Result<Vec<(Table, &'static str, SurveyedColumn)>> {
    let client = postgres::connect(url).await?;
    let tables = tables(&client).await?;
    let table_of = |table: Table| {
        let (schema, name) = source.tables.qualified_name(table);
        let mut tables = tables.iter();
        tables.find(|found| found.schema == schema && found.name == name)
    };

    let mapped = columns.iter().filter_map(|(table, _)| table_of(*table));
    let oids: Vec<u32> = mapped.map(|table| table.oid).collect();
    let rows = read(&client, sql::survey::COLUMNS, &[(&oids, Type::OID_ARRAY)]).await?;
    let mut surveyed = Vec::new();

    for (table, column) in columns {
        let Some(of) = table_of(*table) else { continue };
        let name = source.tables.column(*table, column);
        let mut all = rows.iter().map(FoundColumn::from);
        let Some(mut own) = all.find(|own| own.relation == of.oid && own.name == name) else {
            continue;
        };

        // Those of the statistics may be gone, or in rows that do not meet the condition.
        own.common.clear();
        let is_sampled = own.readable && matches!(own.category.as_str(), "S" | "E" | "N");
        let mut own = SurveyedColumn::from(own);

        if is_sampled {
            let condition = condition_on_this(&source.tables, *table);
            sample(&client, of, &mut own, &condition).await?;
        }

        surveyed.push((*table, *column, own));
    }

    Ok(surveyed)
}

async fn tables(client: &Client) -> Result<Vec<FoundTable>> {
    let tables = read(client, sql::survey::TABLES, &[(&MAX_TABLES, Type::INT8)]).await?;
    Ok(tables.iter().map(FoundTable::from).collect())
}

/// Runs a query in its own transaction.
async fn read(
    client: &Client,
    query: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>> {
    client.batch_execute(BEGIN).await?;
    let rows = client.query_typed(query, parameters).await;
    client.batch_execute("rollback").await?;
    Ok(rows?)
}

/// Adds the values of a part of the rows that meet a condition. A column that cannot be read in time
/// is left as it is.
async fn sample(
    client: &Client,
    table: &FoundTable,
    column: &mut SurveyedColumn,
    condition: &str,
) -> Result<()> {
    let name = quote_identifier(&column.name);
    let names = [
        ("column", &*logged(&format!("this.{name}"))),
        ("name", &name),
        ("table", &quote_qualified(&table.schema, &table.name)),
        ("condition", condition),
    ];

    let most = MAX_VALUES as i64 + 1;
    let query = fill(sql::survey::SAMPLE, &names);
    let Ok(rows) = read(client, &query, &[(&most, Type::INT8)]).await else {
        return Ok(());
    };

    let counts: Vec<(String, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let all: i64 = counts.iter().map(|(_, count)| count).sum();

    // Many values are no statuses. For a key, they only show which form it has.
    if counts.len() > MAX_VALUES && !column.is_key {
        column.values.clear();
        return Ok(());
    }

    for (text, count) in counts {
        column.add(text, count as f64 / all as f64);
    }

    Ok(())
}

/// Adds what codes mean by small tables that foreign keys lead to.
async fn add_meanings(client: &Client, survey: &mut Survey) -> Result<()> {
    let mut known: HashMap<(String, String), Vec<(String, String)>> = HashMap::new();

    for table in 0..survey.tables.len() {
        for column in 0..survey.tables[table].columns.len() {
            let own = &survey.tables[table].columns[column];
            let Some(to) = own.references.clone().filter(|_| is_telling(&own.name)) else {
                continue;
            };

            let target = survey
                .tables
                .iter()
                .find(|found| found.is(&to.schema, &to.table));
            let label = target.and_then(|target| {
                let mut names = LABELS.iter();
                names.find_map(|name| {
                    target
                        .column(name)
                        .filter(|label| label.category == "S" && label.readable)
                })
            });
            let is_small = target
                .is_some_and(|target| target.rows.is_none_or(|rows| rows <= MAX_VALUES as i64));
            let Some(label) = label.filter(|_| is_small) else {
                continue;
            };

            let place = (to.schema.clone(), to.table.clone());
            if !known.contains_key(&place) {
                let names = [
                    ("key", &*quote_identifier(&to.column)),
                    ("label", &quote_identifier(&label.name)),
                    ("table", &quote_qualified(&to.schema, &to.table)),
                ];
                let query = fill(sql::survey::MEANINGS, &names);
                let most = MAX_VALUES as i64 + 1;
                let rows = read(client, &query, &[(&most, Type::INT8)])
                    .await
                    .unwrap_or_default();
                let meanings = match rows.len() <= MAX_VALUES {
                    true => rows.iter().map(|row| (row.get(0), row.get(1))).collect(),
                    false => Vec::new(),
                };
                known.insert(place.clone(), meanings);
            }

            survey.tables[table].columns[column]
                .meanings
                .extend(known[&place].clone());
        }
    }

    Ok(())
}

fn is_telling(name: &str) -> bool {
    let name = name.to_lowercase();
    TELLING.iter().any(|word| name.contains(word))
}

impl FoundColumn {
    /// Returns whether the column's values matter and the statistics do not list them all: they lack
    /// rare values, and have none of tables that were never analyzed.
    fn wants_sample(&self) -> bool {
        let listed: f64 = self.frequencies.iter().map(|share| f64::from(*share)).sum();
        let is_complete = listed + f64::from(self.null_fraction) >= COMPLETE;
        let is_text_key = self.is_key && self.category == "S";
        let is_status = !self.is_key && !self.is_unique && is_telling(&self.name);

        self.readable
            && self.category != "B"
            && (is_text_key || (is_status && matches!(self.category.as_str(), "S" | "E" | "N")))
            && !is_complete
    }
}

impl From<FoundColumn> for SurveyedColumn {
    fn from(found: FoundColumn) -> SurveyedColumn {
        let references = match (
            found.foreign_schema,
            found.foreign_table,
            found.foreign_column,
        ) {
            (Some(schema), Some(table), Some(column)) => Some(Reference {
                schema,
                table,
                column,
            }),
            _ => None,
        };

        let mut column = SurveyedColumn {
            name: found.name,
            type_name: found.type_name,
            category: found.category,
            not_null: found.not_null,
            generated: found.generated,
            readable: found.readable,
            is_key: found.is_key,
            is_unique: found.is_unique,
            references,
            values: Vec::new(),
            meanings: found.comment.as_deref().map(meanings).unwrap_or_default(),
        };

        // An amount or a count is no status, however few values it has.
        let may_be_status =
            matches!(column.category.as_str(), "S" | "E") || is_telling(&column.name);
        if may_be_status && found.common.len() <= MAX_VALUES {
            for (text, share) in found.common.iter().zip(&found.frequencies) {
                // `character(n)` is padded in the statistics.
                let text = text.as_deref().unwrap_or_default().trim_end().to_owned();
                column.add(text, f64::from(*share));
            }
        }

        let allowed = found.checks.iter().flat_map(|check| literals(check));
        for text in found.labels.iter().cloned().chain(allowed) {
            column.add(text, 0.0);
        }

        // Whatever the role may read of the statistics.
        let position = |text: &String| found.labels.iter().position(|label| label == text);
        column.values.sort_by_key(|value| position(&value.text));

        column
    }
}

/// Returns the values that a check constraint allows, which frameworks write for enums: quoted
/// texts, or the numbers of a short range.
fn literals(check: &str) -> Vec<String> {
    let bound = |operator: &str| -> Option<i64> {
        let after = check.split_once(operator)?.1.trim_start();
        let end = after
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(after.len());
        after[..end].parse().ok()
    };

    if let (Some(first), Some(last)) = (bound(">="), bound("<=")) {
        let is_short = last - first < MAX_VALUES as i64;
        return (first..=last)
            .filter(|_| is_short)
            .map(|code| code.to_string())
            .collect();
    }

    let is_list = check.contains("ANY (") || check.contains(" OR ") || check.contains(" = '");
    let texts = check.split('\'').skip(1).step_by(2);
    texts.filter(|_| is_list).map(str::to_owned).collect()
}

/// Returns the meanings that a comment such as `0 = draft, 1 = in review` lists.
fn meanings(comment: &str) -> Vec<(String, String)> {
    let parts = comment.split([',', ';', '\n', '|', '/', '(', ')']);
    let pairs = parts.filter_map(|part| {
        let mut separators = part.match_indices([':', '=', '-']);
        separators.find_map(|(at, separator)| {
            let code = part[..at].split_whitespace().last()?;
            let meaning = part[at + separator.len()..].trim_start_matches(['>', '=']);
            let meaning = meaning.trim().trim_end_matches('.');
            let is_code = code.parse::<i64>().is_ok() || code.len() == 1;
            (is_code && !meaning.is_empty()).then(|| (code.to_owned(), meaning.to_owned()))
        })
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_checks_name_values() {
        let pair = |code: &str, meaning: &str| (code.to_owned(), meaning.to_owned());
        assert_eq!(
            meanings("Job state: 0=queued, 1 => running; 9: failed."),
            [
                pair("0", "queued"),
                pair("1", "running"),
                pair("9", "failed")
            ]
        );
        assert_eq!(meanings("Set by the scheduler - do not change"), []);

        let check = "CHECK (((status)::text = ANY ((ARRAY['DRAFT'::character varying, 'LIVE'::character varying])::text[])))";
        assert_eq!(literals(check), ["DRAFT", "LIVE"]);
        assert_eq!(
            literals("CHECK (((status >= 0) AND (status <= 2)))"),
            ["0", "1", "2"]
        );
        assert_eq!(literals("CHECK ((length(name) > 3))"), [""; 0]);
    }
}
