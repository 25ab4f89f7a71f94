//! Findings: the results of checks, with their fixes.

use std::fmt;

use jiff::Timestamp;

use crate::domain::gap::Gap;
use crate::domain::table::Table;
use crate::postgres;

/// The remedy of what Walhook's role may not change itself.
pub const PRINT: &str = "let a DBA run what `walhook setup --print` prints";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Ok,
    Warn,
    Fail,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Ok => "ok",
            Severity::Warn => "warn",
            Severity::Fail => "fail",
        })
    }
}

/// The condition that a finding is about, if a running process acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The table exists.
    Table(Table),
    /// The table has the columns that the mapping names.
    Columns(Table),
    /// The publication exists and streams every change of its tables.
    Publication,
    /// The publication has the tables.
    PublishedTables,
    /// The WAL has the columns of old rows that are needed to detect transitions.
    ReplicaIdentity(Table),
    /// Triggers see the mapped generated columns.
    GeneratedColumns(Table),
    /// The platform's updates succeed with the replica identity that setup has set.
    RejectedUpdates(Table),
    /// The table has its triggers, and they fire.
    Triggers(Table),
    /// The table has its triggers before it has rows.
    TriggersOfEmpty(Table),
    /// The function that the table's triggers call is the one that the mapping needs.
    TriggerFunction(Table),
    /// The outbox has the trigger that records when it is emptied by hand, and nobody has altered
    /// the others.
    OutboxTrigger,
    /// Everything else.
    Other,
}

/// How to fix a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Run `walhook setup`, after what the text says.
    Setup {
        first: Option<String>,
    },
    /// Run `walhook repair`, after what the text says.
    Repair {
        first: Option<String>,
    },
    Other(String),
}

impl Remedy {
    pub const SETUP: Remedy = Remedy::Setup { first: None };
    pub const REPAIR: Remedy = Remedy::Repair { first: None };
}

impl From<String> for Remedy {
    fn from(text: String) -> Remedy {
        Remedy::Other(text)
    }
}

impl From<&str> for Remedy {
    fn from(text: &str) -> Remedy {
        Remedy::Other(text.to_owned())
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, command) = match self {
            Remedy::Setup { first } => (first, "setup"),
            Remedy::Repair { first } => (first, "repair"),
            Remedy::Other(text) => return f.write_str(text),
        };

        match first {
            Some(first) => write!(f, "{first}, then run `walhook {command}`"),
            None => write!(f, "run `walhook {command}`"),
        }
    }
}

/// A statement that fixes a finding, for a DBA to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// The role whose rights it needs. A superuser has them too.
    pub by: String,
    pub sql: String,
    pub kind: FixKind,
}

/// What a statement does, as far as it decides where and how a script runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FixKind {
    /// Grants a privilege, which later statements may need.
    Grants,
    /// Locks a table exclusively: while it waits, the platform's statements queue behind it.
    Locks,
    Other,
}

impl Fix {
    pub fn new(by: impl Into<String>, kind: FixKind, sql: impl Into<String>) -> Fix {
        Fix {
            by: by.into(),
            sql: sql.into(),
            kind,
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug)]
pub struct Finding {
    pub condition: Condition,
    pub subject: String,
    pub severity: Severity,
    pub state: String,
    /// How to fix it; none if there is nothing to fix.
    pub remedy: Option<Remedy>,
    /// Whether `walhook setup` refuses, because it cannot fix this itself.
    pub blocks_setup: bool,
    /// The tables and partitions concerned, if they are not the subject.
    pub relations: Vec<String>,
    /// The statements that fix it.
    pub fixes: Vec<Fix>,
}

impl Finding {
    pub fn ok(subject: impl Into<String>, state: impl Into<String>) -> Finding {
        Finding {
            condition: Condition::Other,
            subject: subject.into(),
            severity: Severity::Ok,
            state: state.into(),
            remedy: None,
            blocks_setup: false,
            relations: Vec::new(),
            fixes: Vec::new(),
        }
    }

    pub fn warn(
        subject: impl Into<String>,
        state: impl Into<String>,
        remedy: impl Into<Remedy>,
    ) -> Finding {
        Finding {
            severity: Severity::Warn,
            remedy: Some(remedy.into()),
            ..Finding::ok(subject, state)
        }
    }

    pub fn fail(
        subject: impl Into<String>,
        state: impl Into<String>,
        remedy: impl Into<Remedy>,
    ) -> Finding {
        Finding {
            severity: Severity::Fail,
            ..Finding::warn(subject, state, remedy)
        }
    }

    /// Compares a server's clock, read after `before`, with this machine's: receivers reject
    /// deliveries that look old.
    pub fn clock(subject: &str, theirs: Timestamp, before: Timestamp) -> Finding {
        const TOLERATED_SECONDS: f64 = 1.0;
        let skew = postgres::clock_skew(theirs, before).as_secs_f64();

        if skew > TOLERATED_SECONDS {
            let remedy = "synchronize both clocks with a time server: receivers reject deliveries that look old";
            return Finding::warn(
                subject,
                format!("differs by {skew:.1} s from this machine's"),
                remedy,
            );
        }

        Finding::ok(subject, "agrees with this machine's")
    }

    /// Sets the condition.
    pub fn of(self, condition: Condition) -> Finding {
        Finding { condition, ..self }
    }

    /// Marks a failure that `walhook setup` cannot fix.
    pub fn blocking(self) -> Finding {
        Finding {
            blocks_setup: self.severity == Severity::Fail,
            ..self
        }
    }

    /// Adds statements that fix it.
    pub fn fixed_by(mut self, fixes: impl IntoIterator<Item = Fix>) -> Finding {
        self.fixes.extend(fixes);
        self
    }

    /// Downgrades a failure to a warning if it is harmless.
    pub fn unless(self, harmless: bool) -> Finding {
        Finding {
            severity: if harmless {
                Severity::Warn
            } else {
                self.severity
            },
            ..self
        }
    }

    /// Formats the finding without its severity, for errors and logs.
    pub fn message(&self) -> String {
        match &self.remedy {
            Some(remedy) => format!("{}: {}; {remedy}", self.subject, self.state),
            None => format!("{}: {}", self.subject, self.state),
        }
    }

    /// Returns whether the WAL lacks something that events need: to continue streaming would lose
    /// events.
    pub fn stops_streaming(&self) -> bool {
        self.severity == Severity::Fail
            && match self.condition {
                Condition::Table(table) => table.is_captured(),
                Condition::ReplicaIdentity(table) => {
                    table.is_captured() || table == Table::UserAddon
                }
                Condition::Publication
                | Condition::PublishedTables
                | Condition::RejectedUpdates(_) => true,
                _ => false,
            }
    }

    /// Returns whether only changes of the tables concerned are missing or fail: the stream has
    /// those of all others, and waiting would save none.
    pub const fn is_confined(&self) -> bool {
        matches!(
            self.condition,
            Condition::ReplicaIdentity(_)
                | Condition::PublishedTables
                | Condition::RejectedUpdates(_)
        )
    }

    /// Returns whether changes are lost. Not for a missing or renamed table: its changes stay in
    /// the WAL.
    pub fn loses_changes(&self) -> bool {
        matches!(
            self.condition,
            Condition::ReplicaIdentity(_) | Condition::Publication | Condition::PublishedTables
        )
    }

    /// Returns the gap that the finding causes in a running stream.
    pub fn gap(&self) -> Option<Gap> {
        let tables = self.relations.join(", ");

        match self.condition {
            Condition::ReplicaIdentity(_) => Some(Gap::IdentityLost { tables }),
            Condition::Publication | Condition::PublishedTables => {
                let publication = self.subject.trim_start_matches("publication ").to_owned();
                Some(Gap::PublicationChanged {
                    publication,
                    tables,
                })
            }
            _ => None,
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {}", self.severity, self.message())
    }
}
