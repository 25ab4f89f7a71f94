//! Errors in the options of a webhook.

/// An error in an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionFault {
    /// The path to the invalid part, from the settings.
    pub path: Vec<String>,
    /// A predicate of the part: `must not be empty`.
    pub detail: String,
}

impl OptionFault {
    pub fn new(path: &[&str], detail: impl Into<String>) -> OptionFault {
        OptionFault {
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            detail: detail.into(),
        }
    }

    /// Returns the path as a JSON pointer (RFC 6901).
    pub fn pointer(&self) -> String {
        self.path
            .iter()
            .map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1")))
            .collect()
    }
}

pub type Checked<T> = Result<T, Vec<OptionFault>>;
