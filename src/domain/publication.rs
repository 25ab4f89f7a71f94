//! The tables of a publication.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The tables that events need, each with the id of its membership in the publication: none if the publication does not list it. A table
/// that leaves the publication and returns gets another id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublicationMembers(BTreeMap<String, Option<u32>>);

impl PublicationMembers {
    /// Returns the tables that have left since, also if they have returned. Tables that are no longer needed are ignored.
    pub fn left_until<'a>(&self, later: &'a PublicationMembers) -> Vec<&'a str> {
        let has_left = |(table, member): &(&String, &Option<u32>)| {
            let before = self.0.get(*table).copied().flatten();
            before.is_some() && before != **member
        };
        later.0.iter().filter(has_left).map(|(table, _)| table.as_str()).collect()
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
        members.iter().map(|(table, member)| ((*table).to_owned(), *member)).collect()
    }

    #[test]
    fn tables_that_have_left_are_known_by_their_memberships() {
        let before = members(&[("a", Some(1)), ("b", Some(2)), ("c", None), ("d", Some(4)), ("e", Some(5))]);
        let later = members(&[("a", Some(1)), ("b", Some(9)), ("c", Some(8)), ("d", None), ("f", Some(7))]);
        assert_eq!(before.left_until(&later), ["b", "d"]);
        assert_eq!(PublicationMembers::default().left_until(&later), [""; 0]);
    }
}
