//! Two attempts of a delivery side by side.

use std::collections::BTreeMap;

/// What of an attempt is compared: names and values, in the order in which they are shown.
pub struct Side {
    pub title: String,
    pub facts: Vec<(String, String)>,
}

/// Two attempts, property by property.
pub struct Comparison {
    pub left: String,
    pub right: String,
    /// The properties that differ. Those that only the second attempt has come last.
    pub different: Vec<Difference>,
    /// Names and values of the other properties.
    pub equal: Vec<(String, String)>,
}

pub struct Difference {
    pub name: String,
    pub left: Option<String>,
    pub right: Option<String>,
}

/// Compares two attempts.
pub fn compare(left: Side, right: Side) -> Comparison {
    let mut others: BTreeMap<String, String> = right.facts.iter().cloned().collect();
    let mut different = Vec::new();
    let mut equal = Vec::new();

    for (name, value) in left.facts {
        match others.remove(&name) {
            Some(other) if other == value => equal.push((name, value)),
            other => different.push(Difference {
                name,
                left: Some(value),
                right: other,
            }),
        }
    }

    let added = right.facts.into_iter();
    let added = added.filter(|(name, _)| others.contains_key(name));
    different.extend(added.map(|(name, value)| Difference {
        name,
        left: None,
        right: Some(value),
    }));

    Comparison {
        left: left.title,
        right: right.title,
        different,
        equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_of_both_sides_are_equal_or_different() {
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
        let different = found.different.iter();
        let different: Vec<(&str, Option<&str>, Option<&str>)> = different
            .map(|row| (&*row.name, row.left.as_deref(), row.right.as_deref()))
            .collect();

        let expected = [
            ("Status", Some("500"), Some("200")),
            ("server", Some("x"), None),
            ("date", None, Some("y")),
        ];
        assert_eq!(different, expected);
        assert_eq!(found.equal, [("URL".to_owned(), "a".to_owned())]);
    }
}
