//! What a publication streams.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The name of the publication's options among the members.
const OPTIONS: &str = "options";

/// What the publication streams of the tables that events need: each table, each of their
/// partitions, and the publication's options, with numbers. A table or a partition that leaves and
/// returns has another number, and so have options that were changed and restored. None for a table
/// that is not streamed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationMembers(BTreeMap<String, Option<u32>>);

impl PublicationMembers {
    /// Returns what was not streamed all the time until `later`, for people: the tables and
    /// partitions that have left, even if they have returned. Tables that are no longer needed, and
    /// partitions that no longer exist, are ignored.
    pub fn left_by(&self, later: &PublicationMembers) -> Vec<String> {
        let has_left = |(name, number): &(&String, &Option<u32>)| {
            let before = self.0.get(*name).copied().flatten();
            before.is_some() && before != **number
        };

        let left = later
            .0
            .iter()
            .filter(has_left)
            .map(|(name, _)| name.as_str());
        left.map(|name| {
            if name == OPTIONS {
                "every change".to_owned()
            } else {
                name.to_owned()
            }
        })
        .collect()
    }
}

impl FromIterator<(String, Option<u32>)> for PublicationMembers {
    fn from_iter<T: IntoIterator<Item = (String, Option<u32>)>>(members: T) -> PublicationMembers {
        PublicationMembers(members.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(members: &[(&str, Option<u32>)]) -> PublicationMembers {
        members
            .iter()
            .map(|(table, member)| ((*table).to_owned(), *member))
            .collect()
    }

    #[test]
    fn tables_that_have_left_are_known_by_their_memberships() {
        let before = members(&[
            ("a", Some(1)),
            ("b", Some(2)),
            ("c", None),
            ("d", Some(4)),
            ("e", Some(5)),
        ]);

        let later = members(&[
            ("a", Some(1)),
            ("b", Some(9)),
            ("c", Some(8)),
            ("d", None),
            ("f", Some(7)),
        ]);

        assert_eq!(before.left_by(&later), ["b", "d"]);
        assert_eq!(PublicationMembers::default().left_by(&later), [""; 0]);

        let before = members(&[("options", Some(1))]);
        let later = members(&[("options", Some(2))]);
        assert_eq!(before.left_by(&later), ["every change"]);
    }
}
