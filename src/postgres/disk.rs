//! Recognises failures of a server's disk by their SQLSTATE.

use tokio_postgres::error::SqlState;

/// A failure of the disk of a database server. Nothing but the disk's repair helps; statements are
/// retried until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    Full,
    /// The disk reports I/O errors.
    Io,
    /// Files of the server are missing or contain something invalid.
    Damaged,
}

impl DiskFault {
    /// Returns the fault that a statement or a connection failed with, if it was one.
    pub fn of(error: &tokio_postgres::Error) -> Option<DiskFault> {
        error.code().and_then(DiskFault::of_code)
    }

    /// Returns the fault of an SQLSTATE.
    pub fn of_code(code: &SqlState) -> Option<DiskFault> {
        match *code {
            SqlState::DISK_FULL => Some(DiskFault::Full),
            SqlState::IO_ERROR => Some(DiskFault::Io),
            SqlState::DATA_CORRUPTED | SqlState::INDEX_CORRUPTED | SqlState::UNDEFINED_FILE => {
                Some(DiskFault::Damaged)
            }
            _ => None,
        }
    }

    /// Returns the name that metrics use.
    pub const fn as_str(self) -> &'static str {
        match self {
            DiskFault::Full => "full",
            DiskFault::Io => "io",
            DiskFault::Damaged => "damaged",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_of_the_disk_are_recognised() {
        let found = |code: &str| DiskFault::of_code(&SqlState::from_code(code));
        assert_eq!(found("53100"), Some(DiskFault::Full));
        assert_eq!(found("58030"), Some(DiskFault::Io));
        assert_eq!(found("XX001"), Some(DiskFault::Damaged));

        for other in ["53200", "53300", "57P01", "40001", "42P01"] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
