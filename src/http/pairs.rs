//! The name-value pairs of queries and forms. Their number is limited, because a pair of two bytes
//! takes about 80 in memory.

use url::form_urlencoded;

use super::problem::Problem;

/// The longest form is that of a webhook: twelve fields, and one for each event type. Clients may
/// repeat a parameter for each value.
pub const MAX_PAIRS: usize = 256;

/// Decoded pairs, in their order.
#[derive(Debug)]
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// Parses url-encoded text. Stops at the first pair beyond the limit.
    pub fn parse(text: &[u8]) -> Result<Pairs, Problem> {
        let pairs: Vec<_> = form_urlencoded::parse(text).take(MAX_PAIRS + 1).collect();
        if pairs.len() > MAX_PAIRS {
            return Err(Problem::too_many_pairs(MAX_PAIRS));
        }

        Ok(Pairs(
            pairs
                .into_iter()
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
        ))
    }

    /// Returns the value of the first pair of that name.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(given, _)| given == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the values of all pairs of that name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(given, _)| given == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the name of each pair.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the pairs of all other names.
    pub fn except<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a (String, String)> {
        self.0.iter().filter(move |(given, _)| given != name)
    }
}

impl From<Vec<(String, String)>> for Pairs {
    fn from(pairs: Vec<(String, String)>) -> Pairs {
        Pairs(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_decoded_and_their_number_is_limited() {
        let pairs = Pairs::parse(b"a=1&b=%2B+x&&a=&c").unwrap();
        assert_eq!((pairs.first("a"), pairs.first("x")), (Some("1"), None));
        assert_eq!(pairs.all("a").collect::<Vec<_>>(), ["1", ""]);
        assert_eq!(pairs.all("b").collect::<Vec<_>>(), ["+ x"]);
        assert_eq!(pairs.except("a").count(), 2);
        assert!(Pairs::parse("a&".repeat(MAX_PAIRS).as_bytes()).is_ok());

        let problem = Pairs::parse("a&".repeat(MAX_PAIRS + 1).as_bytes()).unwrap_err();
        assert!(
            problem.status() == 422 && problem.detail().contains("256"),
            "{problem:?}"
        );
    }
}
