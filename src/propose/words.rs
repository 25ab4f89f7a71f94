//! The words that platforms use for the tables, columns and values of the reference schema, and how
//! a name is compared with them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use crate::domain::table::Table;

static VOCABULARY: LazyLock<Vocabulary> = LazyLock::new(|| {
    toml::from_str(include_str!("vocabulary.toml")).expect("the vocabulary is tested")
});

/// By the names of tables and columns of the reference schema.
type ByColumn<T> = BTreeMap<String, BTreeMap<String, T>>;

/// The content of `vocabulary.toml`, which explains itself.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vocabulary {
    tables: BTreeMap<String, Phrases>,
    columns: ByColumn<Phrases>,
    values: ByColumn<Vec<(String, Phrases)>>,
    times: ByColumn<(Phrases, String, String)>,
    deletions: Deletions,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Deletions {
    times: Phrases,
    marks: Phrases,
}

/// Words and how much a name says if it consists of them, between 0 and 1.
pub(super) struct Phrase {
    pub words: Vec<String>,
    weight: f64,
}

#[derive(Deserialize)]
#[serde(from = "String")]
pub(super) struct Phrases(pub Vec<Phrase>);

impl From<String> for Phrases {
    fn from(list: String) -> Phrases {
        let phrase = |text: &str| {
            let (name, weight) = match text.rsplit_once(' ') {
                Some((name, last)) => last.parse().map_or((text, 1.0), |weight| (name, weight)),
                None => (text, 1.0),
            };
            Phrase {
                words: words(name),
                weight,
            }
        };
        Phrases(list.split(", ").map(phrase).collect())
    }
}

/// Splits a name into its words in lower case and in the singular: `"DistroQueues"`,
/// `distro_queues` and `DISTRO QUEUE` are the same.
pub(super) fn words(name: &str) -> Vec<String> {
    let letters: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];

    for (index, letter) in letters.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| letters[before]);
        let after = letters.get(index + 1);
        let starts_word = letter.is_uppercase()
            && (before.is_some_and(|before| before.is_lowercase() || before.is_numeric())
                || (before.is_some_and(char::is_uppercase)
                    && after.is_some_and(|after| after.is_lowercase())));

        if !letter.is_alphanumeric() || starts_word {
            words.push(String::new());
        }

        if letter.is_alphanumeric() {
            let word = words.last_mut().expect("the list is never empty");
            word.extend(letter.to_lowercase());
        }
    }

    words.retain(|word| !word.is_empty());
    words.iter().map(|word| singular(word)).collect()
}

fn singular(word: &str) -> String {
    let keeps_s = ["ss", "us", "is", "as"]
        .iter()
        .any(|end| word.ends_with(end));
    if let Some(stem) = word.strip_suffix("ies").filter(|stem| stem.len() > 2) {
        return format!("{stem}y");
    }

    for end in ["uses", "ches", "shes", "sses", "xes"] {
        if word.ends_with(end) {
            return word[..word.len() - 2].to_owned();
        }
    }

    match word.strip_suffix('s') {
        Some(stem) if !keeps_s && stem.len() > 2 => stem.to_owned(),
        _ => word.to_owned(),
    }
}

/// Returns the form in which values are compared: `In Review`, `IN_REVIEW` and `inReview` are
/// `in_review`.
pub(super) fn value_key(text: &str) -> String {
    words(text).join("_")
}

/// Returns how close a name is to the closest of some phrases, between 0 and 1. Words before the
/// phrase count little, because frameworks and teams write prefixes: `catalog_release`.
pub(super) fn closeness(name: &[String], phrases: &[Phrase]) -> f64 {
    let scores = phrases
        .iter()
        .map(|phrase| phrase.weight * likeness(name, &phrase.words));
    scores.fold(0.0, f64::max)
}

fn likeness(name: &[String], phrase: &[String]) -> f64 {
    // Django writes the words of a model's name together: `catalog_distributionjob`.
    let is_together = name.last().is_some_and(|last| *last == phrase.concat());

    if name.concat() == phrase.concat() {
        1.0
    } else if name.ends_with(phrase) || is_together {
        0.88
    } else if name.starts_with(phrase) {
        0.5
    } else if phrase.iter().all(|word| name.contains(word)) {
        0.45
    } else {
        0.0
    }
}

/// Returns a column's name without the ending of a reference: `album_id`, `albumNo` and `fk_album`
/// refer to an album. None if nothing is left.
pub(super) fn referent(name: &[String]) -> Option<Vec<String>> {
    const ENDINGS: [&str; 8] = ["id", "no", "nr", "num", "number", "key", "fk", "ref"];
    let is_ending = |word: &&String| !ENDINGS.contains(&word.as_str());
    let left: Vec<String> = name.iter().filter(is_ending).cloned().collect();
    (!left.is_empty()).then_some(left)
}

/// Returns the phrases for a table's name.
pub(super) fn of_table(table: Table) -> &'static [Phrase] {
    VOCABULARY
        .tables
        .get(table.name())
        .map_or(&[], |phrases| &phrases.0)
}

/// Returns the phrases for a column's name. References to other tables are recognized by
/// [`referent`] instead.
pub(super) fn of_column(table: Table, column: &str) -> &'static [Phrase] {
    find(&VOCABULARY.columns, table, column).map_or(&[], |phrases| &phrases.0)
}

/// Returns the meanings of a column's values, with the words that platforms use for them.
pub(super) fn meanings(table: Table, column: &str) -> &'static [(String, Phrases)] {
    find(&VOCABULARY.values, table, column).map_or(&[], Vec::as_slice)
}

/// Returns the times that say that something has happened, for a status that no column has, with
/// what a time and a null mean.
pub(super) fn times(table: Table, column: &str) -> Option<&'static (Phrases, String, String)> {
    find(&VOCABULARY.times, table, column)
}

fn find<T>(entries: &'static ByColumn<T>, table: Table, column: &str) -> Option<&'static T> {
    entries.get(table.name())?.get(column)
}

/// Returns whether a column marks deleted rows, and the condition that other rows meet.
pub(super) fn soft_deletion(name: &str, is_time: bool, is_boolean: bool) -> Option<&'static str> {
    let words = words(name);
    let is_one_of = |phrases: &Phrases| closeness(&words, &phrases.0) >= 0.9;

    if is_time && is_one_of(&VOCABULARY.deletions.times) {
        Some(r#""null""#)
    } else if is_boolean && is_one_of(&VOCABULARY.deletions.marks) {
        Some("false")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_frameworks_have_the_same_words() {
        for name in [
            "distro_queues",
            "DistroQueue",
            "distroQueues",
            "DISTRO_QUEUE",
            "distro queue",
        ] {
            assert_eq!(words(name), ["distro", "queue"], "{name}");
        }

        assert_eq!(words("releaseUPC2"), ["release", "upc2"]);
        assert_eq!(words("HTTPStatuses"), ["http", "status"]);
        assert_eq!(words("companies"), ["company"]);

        for value in ["In Review", "IN_REVIEW", "in-review", "inReview"] {
            assert_eq!(value_key(value), "in_review", "{value}");
        }
    }

    #[test]
    fn the_vocabulary_names_tables_and_columns_of_the_reference_schema() {
        let vocabulary = &*VOCABULARY;
        let tables = vocabulary.tables.keys().map(|table| (table, None));
        let columns = vocabulary
            .columns
            .iter()
            .flat_map(|(table, columns)| columns.keys().map(move |column| (table, Some(column))));
        let values = vocabulary
            .values
            .iter()
            .flat_map(|(table, columns)| columns.keys().map(move |column| (table, Some(column))));

        for (table, column) in tables.chain(columns).chain(values) {
            let known = Table::by_name(table).unwrap_or_else(|| panic!("{table}"));
            assert!(
                column.is_none_or(|column| known.column(column).is_some()),
                "{table}: {column:?}"
            );
        }

        for table in Table::ALL {
            assert!(!of_table(*table).is_empty(), "{}", table.name());

            // Meanings that no event knows would be lost.
            for column in table.columns() {
                let closed = table.closed_values(column).unwrap_or_default();
                let meanings = meanings(*table, column).iter();
                let mut known: Vec<&str> = meanings.map(|(meaning, _)| meaning.as_str()).collect();
                let mut closed = closed.to_vec();
                known.sort_unstable();
                closed.sort_unstable();
                assert!(
                    closed.is_empty() || known == closed,
                    "{}.{column}",
                    table.name()
                );
            }
        }
    }

    #[test]
    fn a_prefix_is_closer_than_another_ending() {
        let close = |name: &str| closeness(&words(name), of_table(Table::Release));
        assert!(close("releases") > close("catalog_release"));
        assert!(close("catalog_release") > close("release_notes"));
        assert!(close("oauth_tokens") < 0.1);

        let job = closeness(
            &words("catalog_distributionjob"),
            of_table(Table::DistroQueue),
        );
        assert!(job > 0.8, "{job}");
        assert_eq!(referent(&words("albumNo")), Some(vec!["album".to_owned()]));
        assert_eq!(referent(&words("id")), None);
    }
}
