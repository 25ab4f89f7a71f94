//! Outlets that are values of a column: labels know them by their ids and names, so what a
//! configuration has given them is kept.

use std::collections::BTreeMap;

use crate::domain::survey::SurveyedColumn;
use crate::sql::quote_literal;

/// The outlets of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outlets {
    /// By the platform's value.
    ids: BTreeMap<String, i64>,
    /// By id.
    names: BTreeMap<i64, String>,
}

impl Outlets {
    /// Reads them from the text of a configuration file, in the form in which they are proposed.
    pub fn of_configuration(text: &str) -> Result<Outlets, toml::de::Error> {
        let file: toml::Table = text.parse()?;
        let at = |path: &[&str]| {
            let mut path = path.iter();
            let first = path.next().and_then(|key| file.get(*key));
            path.fold(first, |found, key| found?.get(*key))
        };

        let ids = at(&["source", "tables", "distro_queue", "values", "outlet_id"]);
        let ids = ids.and_then(toml::Value::as_table).into_iter().flatten();
        let ids = ids.filter_map(|(value, id)| Some((value.clone(), id.as_str()?.parse().ok()?)));

        let query = at(&["source", "lookups", "outlet"]).and_then(toml::Value::as_str);
        Ok(Outlets {
            ids: ids.collect(),
            names: query.map(listed).unwrap_or_default(),
        })
    }

    /// Returns the outlets that are values of a column, each with its id: those that have none get
    /// the next ones.
    pub(super) fn ids<'a>(&'a self, own: &'a SurveyedColumn) -> Vec<(&'a str, i64)> {
        let known = self.ids.iter().map(|(value, id)| (value.as_str(), *id));
        let mut ids: Vec<(&str, i64)> = known.collect();
        ids.sort_by_key(|(_, id)| *id);

        let next = ids.last().map_or(1, |(_, id)| id.saturating_add(1));
        let values = own.values.iter().map(|value| value.text.as_str());
        let new = values.filter(|value| !self.ids.contains_key(*value));

        ids.extend(new.zip(next..));
        ids
    }

    /// Returns the query for their names: those of the configuration, or else the values.
    pub(super) fn query(&self, own: &SurveyedColumn) -> String {
        let mut names = self.names.clone();
        for (value, id) in self.ids(own) {
            names.entry(id).or_insert_with(|| value.to_owned());
        }

        let rows = names.iter();
        let rows: Vec<String> = rows
            .map(|(id, name)| format!("({id}, {})", quote_literal(name)))
            .collect();
        format!(
            "select id, name from (values {}) as outlet (id, name) where id = any($1::bigint[])",
            rows.join(", ")
        )
    }
}

/// Returns the pairs of a `values` list, such as `(1, 'Spotify'), (2, 'Deezer')`.
fn listed(sql: &str) -> BTreeMap<i64, String> {
    // Quotes in a name are doubled.
    let sql = sql.replace("''", "\0");
    let starts = sql.match_indices('(').map(|(at, _)| &sql[at + 1..]);

    let pairs = starts.filter_map(|pair| {
        let (id, name) = pair.split_once(',')?;
        let (name, _) = name.trim_start().strip_prefix('\'')?.split_once('\'')?;
        Some((id.trim().parse().ok()?, name.replace('\0', "'")))
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_from_the_query_that_lists_them() {
        let sql = "select id, name from (values (1, 'Rock ''n'' Roll (EU)'), (2,'B')) as outlet (id, name) where id = any($1)";
        let names = [(1, "Rock 'n' Roll (EU)".to_owned()), (2, "B".to_owned())];
        assert_eq!(listed(sql), BTreeMap::from(names));
        assert_eq!(listed("select id, name from stores"), BTreeMap::new());
    }
}
