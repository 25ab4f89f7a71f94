//! Two attempts of a delivery side by side.

use std::collections::BTreeMap;

/// What of an attempt is compared: names and values, in the order in which they are shown.
pub struct Side {
    pub title: String,
    pub facts: Vec<(String, String)>,
}

/// Two attempts, row by row.
pub struct Comparison {
    pub left: String,
    pub right: String,
    pub rows: Vec<ComparisonRow>,
}

pub struct ComparisonRow {
    pub name: String,
    pub left: Option<String>,
    pub right: Option<String>,
}

impl ComparisonRow {
    pub fn differs(&self) -> bool {
        self.left != self.right
    }
}

/// Compares two attempts. The rows are in the order of the first, then those that only the second
/// has.
pub fn compare(left: Side, right: Side) -> Comparison {
    let mut others: BTreeMap<String, String> = right.facts.iter().cloned().collect();
    let mut rows: Vec<ComparisonRow> = left
        .facts
        .into_iter()
        .map(|(name, value)| ComparisonRow {
            right: others.remove(&name),
            left: Some(value),
            name,
        })
        .collect();

    let missing = right
        .facts
        .into_iter()
        .filter(|(name, _)| others.contains_key(name));
    rows.extend(missing.map(|(name, value)| ComparisonRow {
        name,
        left: None,
        right: Some(value),
    }));

    Comparison {
        left: left.title,
        right: right.title,
        rows,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_of_both_sides_and_say_whether_they_differ() {
        let side = |facts: &[(&str, &str)]| Side {
            title: String::new(),
            facts: facts
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        };
        let found = compare(
            side(&[("Status", "500"), ("URL", "a"), ("server", "x")]),
            side(&[("Status", "200"), ("URL", "a"), ("date", "y")]),
        );
        let rows: Vec<(&str, bool)> = found
            .rows
            .iter()
            .map(|row| (&*row.name, row.differs()))
            .collect();

        let expected = [
            ("Status", true),
            ("URL", false),
            ("server", true),
            ("date", true),
        ];
        assert_eq!(rows, expected);
    }
}
