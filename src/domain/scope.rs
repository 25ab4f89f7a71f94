//! What an API token may be used for.

use super::named::named;

named! {
    /// What an API token, or a session that was opened with it, may be used for.
    pub enum Scope {
        Full = "full",
        /// Reading.
        ReadOnly = "read_only",
    }
}
