//! What a survey of the platform's schema has found: tables, columns, keys and the values of columns
//! that look like statuses.

/// The platform's schema, as Walhook's role sees it.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub database: String,
    pub role: String,
    pub wal_level: String,
    pub tables: Vec<SurveyedTable>,
}

/// A table, or the root of its partitions or of the tables that inherit from it.
#[derive(Clone, Debug, Default)]
pub struct SurveyedTable {
    pub schema: String,
    pub name: String,
    /// The planner's estimate. None if the table was never analyzed.
    pub rows: Option<i64>,
    pub columns: Vec<SurveyedColumn>,
}

/// A column of the platform.
#[derive(Clone, Debug, Default)]
pub struct SurveyedColumn {
    pub name: String,
    /// The type without its modifier, such as `character varying`.
    pub type_name: String,
    /// The category of the base type, as in `pg_type`: `N` is numeric, `S` string, `E` enum, `B`
    /// boolean, `D` date and time.
    pub category: String,
    pub not_null: bool,
    pub generated: bool,
    /// Whether Walhook's role may read it.
    pub readable: bool,
    /// Whether it is the whole primary key.
    pub is_key: bool,
    /// Whether a unique index has only this column.
    pub is_unique: bool,
    /// The table and the column that a foreign key of only this column leads to.
    pub references: Option<Reference>,
    pub values: Vec<SurveyedValue>,
    /// What codes mean by the column's comment, or by the rows of a small table that a foreign key
    /// leads to: code and meaning.
    pub meanings: Vec<(String, String)>,
}

/// Where a foreign key leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub schema: String,
    pub table: String,
    pub column: String,
}

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
pub struct SurveyedValue {
    /// As text, in the form that the configuration compares.
    pub text: String,
    /// Its share of the rows that were looked at. Zero if the type or a constraint allows it and no
    /// row had it.
    pub share: f64,
}

/// The most values of a column that are kept: with more, it is no status.
pub const MAX_VALUES: usize = 40;

impl SurveyedTable {
    pub fn column(&self, name: &str) -> Option<&SurveyedColumn> {
        self.columns.iter().find(|column| column.name == name)
    }

    pub fn is(&self, schema: &str, name: &str) -> bool {
        self.schema == schema && self.name == name
    }
}

impl SurveyedColumn {
    /// Returns whether values have the type of an id in events.
    pub fn is_integer(&self) -> bool {
        matches!(
            self.type_name.as_str(),
            "smallint" | "integer" | "bigint" | "numeric"
        )
    }

    /// Returns whether the column can be text or a number that stands for one of a few values.
    pub fn may_be_status(&self) -> bool {
        matches!(self.category.as_str(), "S" | "E" | "B") || self.is_integer()
    }

    /// Adds a value. Of several shares, the largest counts.
    pub fn add(&mut self, text: String, share: f64) {
        match self.values.iter_mut().find(|value| value.text == text) {
            Some(value) => value.share = value.share.max(share),
            None => self.values.push(SurveyedValue { text, share }),
        }
    }

    pub fn is_time(&self) -> bool {
        self.category == "D"
    }
}
