//! Finds the column of the platform for each column of the reference schema, and what takes the
//! place of those that are missing.

use super::paths::{column_of, owner, reference};
use super::tables::Found;
use super::values::{ValueMap, map_values, meaning_of};
use super::words::{closeness, of_column, of_table, referent, soft_deletion, times, words};
use super::{
    Candidate, Choice, Choices, ColumnProposal, Form, Mapping, Origin, TableProposal, display_name,
    found_by, sql_name,
};
use crate::domain::change::canonical_int;
use crate::domain::survey::{Reference, Survey, SurveyedColumn, SurveyedTable};
use crate::domain::table::Table;
use crate::sql::quote_identifier;

/// The lowest score of a column that is proposed or named as an alternative.
const PROPOSED: f64 = 0.4;
/// The most alternatives that are named.
const MAX_ALTERNATIVES: usize = 2;

/// Returns how well a foreign key leads to a table of the reference schema, between 0 and 1.
pub(super) type Leads<'a> = &'a dyn Fn(Table, &Reference) -> f64;

/// A column that may be a column of the reference schema.
#[derive(Clone, Copy)]
pub(super) struct ColumnMatch<'a> {
    pub own: &'a SurveyedColumn,
    pub score: f64,
}

impl std::ops::Deref for ColumnMatch<'_> {
    type Target = SurveyedColumn;

    fn deref(&self) -> &SurveyedColumn {
        self.own
    }
}

/// Returns the columns of `own` that may be `column`, the most likely first.
pub(super) fn matches<'a>(
    table: Table,
    column: &str,
    own: &'a SurveyedTable,
    leads: Leads<'_>,
) -> Vec<ColumnMatch<'a>> {
    if let Some(target) = target(table, column) {
        return references(own, target, leads);
    }

    let score = |own: &SurveyedColumn| match column {
        "id" => id_score(own),
        _ => f64::from(fits(column, own)) * closeness(&words(&own.name), of_column(table, column)),
    };

    sorted(own, score)
}

/// Returns the columns of `own` that may refer to `target`, the most likely first.
pub(super) fn references<'a>(
    own: &'a SurveyedTable,
    target: Table,
    leads: Leads<'_>,
) -> Vec<ColumnMatch<'a>> {
    sorted(own, |own| reference_score(target, own, leads))
}

fn sorted(own: &SurveyedTable, score: impl Fn(&SurveyedColumn) -> f64) -> Vec<ColumnMatch<'_>> {
    let rated = own.columns.iter().map(|own| ColumnMatch {
        own,
        score: score(own),
    });
    let mut matches: Vec<ColumnMatch<'_>> = rated.filter(|found| found.score >= PROPOSED).collect();
    matches.sort_by(|one, other| other.score.total_cmp(&one.score));
    matches
}

/// Returns the table that a column of the reference schema refers to.
fn target(table: Table, column: &str) -> Option<Table> {
    match column {
        "label_id" => Some(Table::Label),
        "release_id" => Some(Table::Release),
        "outlet_id" => Some(Table::Outlet),
        "track_id" => Some(Table::Track),
        "transcoder_queue_id" => Some(Table::TranscoderQueue),
        "user_id" if table != Table::AppUser => Some(Table::AppUser),
        _ => None,
    }
}

/// Users' ids may have any type; the other ids are integers.
fn id_score(own: &SurveyedColumn) -> f64 {
    match (own.is_key, own.is_integer() || has_integers(own)) {
        (true, true) => 1.0,
        (false, true) if own.is_unique && own.not_null => 0.7,
        _ => 0.0,
    }
}

/// Returns whether a column of text has integers only, as far as it was read.
fn has_integers(own: &SurveyedColumn) -> bool {
    own.category == "S"
        && !own.values.is_empty()
        && own
            .values
            .iter()
            .all(|value| canonical_int(&value.text).is_some())
}

fn reference_score(target: Table, own: &SurveyedColumn, leads: Leads<'_>) -> f64 {
    if own.generated || own.is_key && own.references.is_none() {
        return 0.0;
    }

    let name = referent(&words(&own.name)).map_or(0.0, |name| closeness(&name, of_table(target)));
    match &own.references {
        Some(to) => match leads(target, to) {
            leads if leads > 0.0 => 0.9 * leads + 0.1 * name,
            _ => 0.0,
        },
        // Without a foreign key, only a whole name is evidence, and a number or a text.
        None if own.is_integer() || matches!(own.category.as_str(), "S" | "U") => 0.85 * name,
        None => 0.0,
    }
}

/// Returns whether values of a column have a form that `column` can have.
fn fits(column: &str, own: &SurveyedColumn) -> bool {
    let is_text = matches!(own.category.as_str(), "S" | "E");

    !own.generated
        && match column {
            "status" | "review_status" | "delivery_status" | "severity" | "addon" => {
                own.may_be_status()
            }
            "takedown" | "pre_review_hold" => own.may_be_status(),
            "period_end" => own.is_time() || is_text,
            _ if column.ends_with("_at") => own.is_time() || own.is_integer(),
            "amount" | "total_due_usd" => own.category == "N",
            "profile_version"
            | "blocking"
            | "informational"
            | "requires_feedback"
            | "asset_type_id"
            | "estimated_affected_streams" => own.is_integer(),
            "review_issues" => is_text || matches!(own.category.as_str(), "U" | "A"),
            _ => is_text,
        }
}

/// Proposes how a table of the reference schema is found.
pub(super) fn map(
    survey: &Survey,
    choices: &Choices,
    found: &Found,
    table: Table,
) -> TableProposal {
    let alternatives = found.alternatives.get(&table).cloned().unwrap_or_default();
    let candidate = found.tables.get(&table);

    let absent = |reason: &str| Form::Absent {
        reason: reason.to_owned(),
    };

    let form = match (choices.tables.get(&table), candidate) {
        (Some(Choice::Absent), _) => absent("as you decided"),
        (None, _) if table == Table::Outlet && are_values(survey, found) => {
            substitute(survey, choices, found, table)
                .unwrap_or_else(|| absent("outlets have no names"))
        }
        (_, Some(candidate)) => {
            let mapper = Mapper {
                survey,
                choices,
                found,
                table,
                own: &survey.tables[candidate.index],
            };
            mapper.mapping(candidate.clone()).map_or_else(
                |reason| {
                    substitute(survey, choices, found, table).unwrap_or(Form::Absent { reason })
                },
                Form::Mapped,
            )
        }
        (_, None) => substitute(survey, choices, found, table)
            .unwrap_or_else(|| absent("no table has such a name and such columns")),
    };

    TableProposal {
        table,
        form,
        alternatives,
    }
}

/// Returns the query that takes the place of a table.
fn substitute(survey: &Survey, choices: &Choices, found: &Found, table: Table) -> Option<Form> {
    let (sql, reason) = match table {
        Table::Label => {
            let release = &survey.tables[found.index(Table::Release)?];
            let Origin::Column(user) = owner(survey, found, release)? else {
                return None;
            };
            let is_integer = release.column(&user).is_some_and(SurveyedColumn::is_integer);
            is_integer.then_some(())?;

            (
                "select u as id, u as user_id from unnest($1::bigint[]) u".to_owned(),
                format!("there is no table of labels, so each user is a label: {user} of the releases"),
            )
        }
        Table::Outlet => {
            let queue = &survey.tables[found.index(Table::DistroQueue)?];
            (
                choices.outlets.query(outlet_column(queue)?),
                "outlets are values of a column, so they get ids, which must not change later, and names: labels are shown both, \
                 so write the names that they know".to_owned(),
            )
        }
        Table::UserAddon => (
            "select u as user_id, a as addon from unnest($1) u, unnest(array['preflight_qc', 'stream_radar']) a".to_owned(),
            "no table of add-ons was recognized, so everyone has all; if not, query those who have them".to_owned(),
        ),
        _ => return None,
    };

    Some(Form::Lookup { sql, reason })
}

/// Returns whether the queue names outlets by values, and refers to no table of them.
fn are_values(survey: &Survey, found: &Found) -> bool {
    let Some(queue) = found
        .index(Table::DistroQueue)
        .map(|index| &survey.tables[index])
    else {
        return false;
    };

    let leads = |table: Table, to: &Reference| found.leads(survey, table, to);
    let refers = queue.columns.iter().any(|own| {
        (own.references.is_some() || own.is_integer())
            && reference_score(Table::Outlet, own, &leads) >= PROPOSED
    });
    !refers && outlet_column(queue).is_some()
}

/// Returns the column whose values are outlets, instead of rows of a table.
fn outlet_column(queue: &SurveyedTable) -> Option<&SurveyedColumn> {
    queue.columns.iter().find(|own| {
        let name = referent(&words(&own.name)).unwrap_or_default();
        matches!(own.category.as_str(), "S" | "E")
            && own.references.is_none()
            && !own.values.is_empty()
            && closeness(&name, of_table(Table::Outlet)) >= 0.8
    })
}

/// The search for the columns of one table.
struct Mapper<'a> {
    survey: &'a Survey,
    choices: &'a Choices,
    found: &'a Found,
    table: Table,
    own: &'a SurveyedTable,
}

/// A column with what a person should know about it.
struct Chosen {
    origin: Origin,
    note: Option<String>,
    values: ValueMap,
}

impl Chosen {
    fn column(name: &str, note: impl Into<String>) -> Chosen {
        Chosen::of(Origin::Column(name.to_owned()), note)
    }

    fn computed(expression: impl Into<String>, note: impl Into<String>) -> Chosen {
        Chosen::of(Origin::Computed(expression.into()), note)
    }

    fn of(origin: Origin, note: impl Into<String>) -> Chosen {
        Chosen {
            origin,
            note: Some(note.into()),
            values: ValueMap::default(),
        }
    }
}

impl Mapper<'_> {
    /// Maps every column. The error is the reason why the table cannot be mapped.
    fn mapping(&self, candidate: Candidate) -> Result<Mapping, String> {
        let mut columns = self
            .table
            .columns()
            .iter()
            .map(|column| self.column(column))
            .collect::<Result<Vec<_>, _>>()?;

        // What another column has is no alternative.
        let taken: Vec<Origin> = columns.iter().map(|column| column.origin.clone()).collect();
        for column in &mut columns {
            column
                .alternatives
                .retain(|other| !taken.contains(&Origin::Column(other.clone())));
        }

        let may_be_limited = self.table.may_be_limited()
            && (self.table.is_captured() || self.table == Table::TranscoderQueueFile);
        let mut deletions = self.own.columns.iter().filter(|_| may_be_limited);
        let only = deletions.find_map(|own| {
            let condition = soft_deletion(&own.name, own.is_time(), own.category == "B")?;
            Some((own.name.clone(), condition))
        });

        Ok(Mapping {
            candidate,
            columns,
            only,
        })
    }

    fn matches(&self, column: &str) -> Vec<ColumnMatch<'_>> {
        let leads = |table: Table, to: &Reference| self.found.leads(self.survey, table, to);
        matches(self.table, column, self.own, &leads)
    }

    fn column(&self, column: &'static str) -> Result<ColumnProposal, String> {
        let matches = self.matches(column);
        let best = matches.iter().find(|found| self.is_sound(column, found));
        let chosen = best.and_then(|found| self.chosen(column, found));
        let chosen = chosen.map_or_else(|| self.missing(column), Ok)?;

        let used = best.map(|best| best.name.as_str());
        let others = matches
            .iter()
            .filter(|other| Some(other.name.as_str()) != used);
        let alternatives = others
            .take(MAX_ALTERNATIVES)
            .map(|other| other.name.clone());

        Ok(ColumnProposal {
            column,
            alternatives: alternatives.collect(),
            origin: chosen.origin,
            note: chosen.note,
            values: chosen.values,
        })
    }

    /// Returns whether the column's values agree with its name. A kind of job is a takedown only if
    /// one of its values is.
    fn is_sound(&self, column: &'static str, own: &SurveyedColumn) -> bool {
        let is_named = || {
            words(&own.name)
                .iter()
                .any(|word| word.contains("takedown"))
        };
        let values = || map_values(self.table, column, own, self.choices).mapped;

        match column {
            "outlet_id" => own.references.is_some() || own.is_integer(),
            "takedown" => {
                let means_it = || values().iter().any(|(_, meaning)| meaning == "true");
                own.category == "B" || is_named() || (own.category != "N" && means_it())
            }
            // Features that are no add-ons say nothing about who has one.
            "addon" => {
                let says = |text: &str| {
                    text.parse::<i64>().is_ok() || meaning_of(self.table, column, text).is_some()
                };
                own.values.is_empty() || own.values.iter().any(|value| says(&value.text))
            }
            _ => true,
        }
    }

    /// Returns how a column that was found is mapped. None if its values do not have the form that
    /// is needed.
    fn chosen(&self, column: &'static str, own: &SurveyedColumn) -> Option<Chosen> {
        let mut chosen = Chosen {
            origin: Origin::Column(own.name.clone()),
            note: None,
            values: map_values(self.table, column, own, self.choices),
        };

        if let Some(to) = &own.references {
            chosen.note = Some(format!("foreign key to {}.{}", to.schema, to.table));
        }

        let is_money = matches!(column, "amount" | "total_due_usd");
        let is_in_cents = words(&own.name)
            .iter()
            .any(|word| word == "cent" || word == "minor");

        if is_money && is_in_cents {
            return Some(Chosen::computed(
                format!("round(this.{} / 100.0, 2)", quote_identifier(&own.name)),
                "in cents",
            ));
        }

        if is_money && own.is_integer() && own.type_name != "numeric" {
            chosen.note = Some(
                "an integer: if it is in cents, compute `round(this.… / 100.0, 2)` instead"
                    .to_owned(),
            );
        }

        if column == "review_issues" && own.category == "A" {
            return Some(Chosen::computed(
                format!("to_jsonb(this.{})", quote_identifier(&own.name)),
                "an array",
            ));
        }

        if own.type_name == "timestamp without time zone" {
            chosen.note = Some("without time zone: read as UTC".to_owned());
        }

        // Users' ids may have any type.
        let target = target(self.table, column).filter(|target| *target != Table::AppUser);

        match target {
            Some(target) => self.integer_reference(target, own, chosen),
            None => Some(chosen),
        }
    }

    /// A reference to another column than the id leads through the row.
    fn integer_reference(
        &self,
        target: Table,
        own: &SurveyedColumn,
        chosen: Chosen,
    ) -> Option<Chosen> {
        let (Some(index), Some(to)) = (self.found.index(target), &own.references) else {
            let is_id = own.is_integer() || own.category == "S";
            return is_id.then_some(chosen);
        };

        let referred = &self.survey.tables[index];
        let id = matches(target, "id", referred, &|_, _| 0.0)
            .first()?
            .name
            .clone();
        if id == to.column {
            return Some(chosen);
        }

        Some(Chosen::computed(
            found_by(&id, referred, &to.column, &own.name),
            format!(
                "{} refers to {}, whose integer is {id}",
                own.name, to.column
            ),
        ))
    }

    /// Returns what takes the place of a column that the table does not have.
    fn missing(&self, column: &'static str) -> Result<Chosen, String> {
        let chosen = match (self.table, column) {
            (_, "id") => return missing_id(self.table, self.own),
            (Table::Label | Table::Payment, "user_id") => {
                let note = "check that this is the user whose webhooks get the events";
                owner(self.survey, self.found, self.own).map(|origin| Chosen::of(origin, note))
            }
            (Table::Release, "label_id") => self.label_of_user(),
            (Table::DistroQueue, "outlet_id") => Some(self.outlet_of_value()),
            (table, _) if table.watched().contains(&column) => self.status_elsewhere(column),
            _ if self.table.may_compute(column) => self.expression(column),
            _ => None,
        };

        let Some(chosen) = chosen else {
            let target = target(self.table, column)
                .and_then(|target| Some((target, self.found.index(target)?)));
            if let Some((target, index)) = target {
                let referred = &self.survey.tables[index];
                let has_id = !matches(target, "id", referred, &|_, _| 0.0).is_empty();
                if !has_id {
                    return missing_id(target, referred);
                }
            }

            let advice = match self.table.watched().contains(&column) {
                true => ": keep the status in a column of the table",
                false => "",
            };
            let (own, table) = (display_name(self.own), self.table.name());
            return Err(format!(
                "{own} seems to be {table}, but has no column for {column}{advice}"
            ));
        };

        Ok(chosen)
    }

    /// Without labels, releases belong to users.
    fn label_of_user(&self) -> Option<Chosen> {
        match owner(self.survey, self.found, self.own)? {
            Origin::Column(user) if self.found.index(Table::Label).is_none() => Some(
                Chosen::column(&user, "there is no table of labels: each user is one"),
            ),
            _ => match reference(self.survey, self.found, self.own, Table::Label)? {
                Origin::Computed(path) => Some(Chosen::computed(path, "by foreign keys")),
                Origin::Column(_) => None,
            },
        }
    }

    /// Outlets may be values of a column.
    fn outlet_of_value(&self) -> Chosen {
        let Some(own) = outlet_column(self.own) else {
            return Chosen::computed("null", "no column refers to an outlet");
        };

        let ids = self.choices.outlets.ids(own).into_iter();
        let ids = ids.map(|(value, id)| (value.to_owned(), id.to_string()));
        let note = "ids that must not change later; add new outlets to both lists";
        Chosen {
            values: ValueMap {
                mapped: ids.collect(),
                ..ValueMap::default()
            },
            ..Chosen::column(&own.name, note)
        }
    }

    /// Another column may have the status, or a time may be one.
    fn status_elsewhere(&self, column: &'static str) -> Option<Chosen> {
        if let Some((phrases, then, before)) = times(self.table, column) {
            let found = sorted(self.own, |own| {
                f64::from(own.is_time() && !own.generated)
                    * closeness(&words(&own.name), &phrases.0)
            });

            if let Some(found) = found.first() {
                let note = "no column has the status: the time says that it happened";
                return Some(Chosen {
                    values: ValueMap::of(&[("not null", then.as_str()), ("null", before.as_str())]),
                    ..Chosen::column(&found.name, note)
                });
            }
        }

        let other = match column {
            "review_status" => "delivery_status",
            "delivery_status" => "review_status",
            _ => return None,
        };

        let found = *self.matches(other).first()?;
        Some(Chosen {
            values: map_values(self.table, column, found.own, self.choices),
            ..Chosen::column(&found.name, format!("the same column as {other}"))
        })
    }

    /// Returns an expression for a column that need not be stored.
    fn expression(&self, column: &'static str) -> Option<Chosen> {
        let constant = |value: &str| Some(Chosen::computed(value, "no such column was found"));
        let of_row = |origin: Option<Origin>| match origin? {
            Origin::Computed(path) => Some(Chosen::computed(path, "by foreign keys")),
            Origin::Column(_) => None,
        };

        match (self.table, column) {
            (Table::StreamRadarFlag, "dsp") => of_row(column_of(
                self.survey,
                self.found,
                self.own,
                Table::Outlet,
                "name",
            )),
            (Table::StreamRadarFlag, "isrc") => of_row(self.isrc()),
            (Table::StreamRadarFlag, "severity") => constant("'medium'"),
            (_, "takedown" | "pre_review_hold") => constant("false"),
            (_, "invoice_number") => {
                let id = self.matches("id").first()?.name.clone();
                Some(Chosen::computed(
                    format!("this.{}::text", quote_identifier(&id)),
                    "no such column was found: the id",
                ))
            }
            (Table::Payment, "total_due_usd") => {
                let amount = self.column("amount").ok()?;
                let expression = match amount.origin {
                    Origin::Column(name) => format!("this.{}", quote_identifier(&name)),
                    Origin::Computed(expression) => expression,
                };
                Some(Chosen::computed(
                    expression,
                    "no column has US dollars: right only if all amounts are in USD",
                ))
            }
            (_, "profile_name") => constant("'default'"),
            (_, "profile_version") => constant("1"),
            (_, "blocking" | "informational" | "requires_feedback") => constant("0"),
            (
                _,
                "cat"
                | "title"
                | "review_issues"
                | "message"
                | "period_end"
                | "currency"
                | "name"
                | "first_detected_at"
                | "last_detected_at"
                | "estimated_affected_streams"
                | "resolved_at",
            ) => constant("null"),
            _ => {
                let target = target(self.table, column)?;
                let path = of_row(reference(self.survey, self.found, self.own, target));
                path.or_else(|| (column == "track_id").then(|| constant("null")).flatten())
            }
        }
    }

    /// Returns the ISRC of the track that a flag refers to.
    fn isrc(&self) -> Option<Origin> {
        let track = &self.survey.tables[self.found.index(Table::Track)?];
        let own = track
            .columns
            .iter()
            .find(|own| words(&own.name).contains(&"isrc".to_owned()))?;
        let leads = |table: Table, to: &Reference| self.found.leads(self.survey, table, to);
        let through = references(self.own, Table::Track, &leads)
            .into_iter()
            .next()?;
        let key = &through.references.as_ref()?.column;

        Some(Origin::Computed(found_by(
            &own.name,
            track,
            key,
            &through.name,
        )))
    }
}

/// Events need integers, but users' ids may be anything.
fn missing_id(table: Table, own: &SurveyedTable) -> Result<Chosen, String> {
    let key = own.columns.iter().find(|own| own.is_key);
    if let (Table::AppUser, Some(key)) = (table, key) {
        return Ok(Chosen {
            origin: Origin::Column(key.name.clone()),
            note: None,
            values: ValueMap::default(),
        });
    }

    let key = match key {
        Some(key) => format!("{} ({})", key.name, key.type_name),
        None => "not one column".to_owned(),
    };
    Err(format!(
        "{} seems to be {}, but its key is {key}, and events need integers: `alter table {} add column walhook_id \
         bigint generated always as identity unique`, then run `walhook init` again (see docs/integrators.md, \"What \
         cannot be mapped\")",
        display_name(own),
        table.name(),
        sql_name(own)
    ))
}

/// Returns the distribution statuses of the platform's own, by which previous statuses are known.
pub(super) fn own_statuses(map: &ValueMap) -> Vec<String> {
    let unnamed = map
        .passed_on
        .iter()
        .filter(|value| value.text.parse::<f64>().is_err());
    let own =
        unnamed.filter(|value| meaning_of(Table::DistroQueue, "status", &value.text).is_none());
    own.map(|value| value.text.clone()).collect()
}
