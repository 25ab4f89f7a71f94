//! The tables and columns that Walhook reads, under the names of the reference schema. The
//! configuration maps the platform's names to these; only the decoder, setup and lookups see the
//! platform's.

use super::text::MAX_BODY;

/// The characters of a label's name that are kept. A list of 500 labels stays below a megabyte.
const MAX_NAME: usize = 300;

/// A column, as an index into the tuples of its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Column(pub u8);

/// The id of a captured table's rows: always the first column.
pub const ID: Column = Column(0);

macro_rules! tables {
    ($( $table:ident, $name:ident, $watched:expr, [ $( $column:ident ),+ $(,)? ]; )+) => {
        /// A table of the platform.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Table { $( $table ),+ }

        impl Table {
            pub const ALL: &'static [Table] = &[ $( Table::$table ),+ ];

            /// Returns the name in the reference schema and in the configuration.
            pub const fn name(self) -> &'static str {
                match self { $( Table::$table => stringify!($name) ),+ }
            }

            /// Returns the columns that Walhook reads, in the order of the table's tuples.
            pub const fn columns(self) -> &'static [&'static str] {
                match self { $( Table::$table => &[ $( stringify!($column) ),+ ] ),+ }
            }

            /// Returns the columns whose changes can raise events. Empty for a table that is only
            /// looked up.
            pub const fn watched(self) -> &'static [&'static str] {
                match self { $( Table::$table => $watched ),+ }
            }
        }

        $( #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        pub mod $name {
            use super::Column;
            #[allow(non_camel_case_types, dead_code)]
            #[repr(u8)]
            enum Index { $( $column ),+ }
            $( #[allow(non_upper_case_globals)] pub const $column: Column = Column(Index::$column as u8); )+
        } )+
    };
}

tables! {
    Release, release, &["review_status", "delivery_status"],
        [id, label_id, cat, title, review_status, delivery_status, review_issues, pre_review_hold];
    DistroQueue, distro_queue, &["status"],
        [id, release_id, outlet_id, status, takedown, message];
    TranscoderQueue, transcoder_queue, &["status"],
        [id, track_id, status];
    Payment, payment, &["status"],
        [id, user_id, invoice_number, period_end, amount, total_due_usd, currency, status];
    PreflightReport, preflight_report, &["generated_at"],
        [id, release_id, generated_at, profile_name, profile_version, blocking, informational, requires_feedback];
    StreamRadarFlag, stream_radar_flag, &["status"],
        [id, dsp, isrc, release_id, track_id, severity, status, first_detected_at, last_detected_at,
         estimated_affected_streams, published_at, resolved_at];
    Label, label, &[], [id, user_id, name];
    Outlet, outlet, &[], [id, name];
    Track, track, &[], [id, release_id];
    TranscoderQueueFile, transcoder_queue_file, &[], [id, transcoder_queue_id, asset_type_id, status];
    UserAddon, user_addon, &[], [user_id, addon];
    AppUser, app_user, &[], [id, email];
}

impl Table {
    /// Returns whether changes of this table can raise events. The other tables are only looked up.
    pub const fn is_captured(self) -> bool {
        !self.watched().is_empty()
    }

    /// Returns the columns of [`Table::watched`].
    pub fn watched_columns(self) -> impl Iterator<Item = Column> {
        self.watched()
            .iter()
            .filter_map(move |name| self.column(name))
    }

    /// Returns the columns that events of other rows need. A row is found by its id, or, if it is a
    /// file, by its transcoder queue entry too. Add-ons have no id: see [`super::addons`].
    pub const fn looked_up(self) -> &'static [&'static str] {
        match self {
            Table::Release => &["label_id", "cat", "title", "pre_review_hold"],
            Table::Label => &["user_id", "name"],
            Table::Outlet => &["name"],
            Table::Track => &["release_id"],
            Table::TranscoderQueueFile => &["transcoder_queue_id", "asset_type_id", "status"],
            _ => &[],
        }
    }

    /// Returns the columns of [`Table::looked_up`].
    pub fn looked_up_columns(self) -> impl Iterator<Item = Column> {
        self.looked_up()
            .iter()
            .filter_map(move |name| self.column(name))
    }

    /// Returns how many characters of a text are looked up, if it is only shown: with more, events
    /// are too large to be sent, and lists too long to be read.
    pub fn most_characters(self, column: &str) -> Option<usize> {
        match (self, column) {
            (Table::Release, "cat" | "title") | (Table::Outlet, "name") => Some(MAX_BODY),
            (Table::Label, "name") => Some(MAX_NAME),
            _ => None,
        }
    }

    /// Returns the column that the platform's table need not have, because no event needs it.
    pub const fn optional(self) -> Option<&'static str> {
        match self {
            Table::Label => Some("name"),
            _ => None,
        }
    }

    /// Returns the tables whose extra values the events of a captured table show: its own, and those
    /// of the rows that its events name.
    pub const fn shown(self) -> &'static [Table] {
        match self {
            Table::Release => &[Table::Release, Table::Label],
            Table::DistroQueue => &[
                Table::DistroQueue,
                Table::Release,
                Table::Label,
                Table::Outlet,
            ],
            Table::TranscoderQueue => &[
                Table::TranscoderQueue,
                Table::Track,
                Table::Release,
                Table::Label,
            ],
            Table::Payment => &[Table::Payment],
            Table::PreflightReport => &[Table::PreflightReport, Table::Release, Table::Label],
            Table::StreamRadarFlag => &[
                Table::StreamRadarFlag,
                Table::Track,
                Table::Release,
                Table::Label,
            ],
            _ => &[],
        }
    }

    /// Returns whether the configuration may limit the table to the rows of a condition. Labels,
    /// outlets and tracks are found whatever their rows contain: an event needs its owner, and a
    /// release that the platform has marked as deleted may yet be taken down.
    pub const fn may_be_limited(self) -> bool {
        !matches!(self, Table::Label | Table::Outlet | Table::Track)
    }

    /// Returns the only values that a column has, if any other would be a mistake.
    pub fn closed_values(self, column: &str) -> Option<&'static [&'static str]> {
        match (self, column) {
            (Table::Release, "review_status") => Some(&[
                "draft",
                "to_review",
                "approved",
                "rejected",
                "require_changes",
                "audit",
            ]),
            (Table::StreamRadarFlag, "status") => Some(&["active", "resolved"]),
            (Table::StreamRadarFlag, "severity") => Some(&["low", "medium", "high"]),
            _ => None,
        }
    }

    /// Returns the number under which the store has rows of the table, which never changes. None
    /// for tables whose rows it does not have.
    pub const fn number(self) -> Option<i16> {
        match self {
            Table::Release => Some(1),
            Table::DistroQueue => Some(2),
            Table::TranscoderQueue => Some(3),
            Table::Payment => Some(4),
            Table::PreflightReport => Some(5),
            Table::StreamRadarFlag => Some(6),
            Table::Label => Some(7),
            Table::Outlet => Some(8),
            Table::Track => Some(9),
            Table::TranscoderQueueFile => Some(10),
            Table::UserAddon => Some(11),
            Table::AppUser => None,
        }
    }

    /// Returns whether the configuration may compute `column` by an expression. False for keys and
    /// watched columns, and for tables whose rows are assembled from the stream.
    pub fn may_compute(self, column: &str) -> bool {
        let is_assembled = matches!(self, Table::UserAddon | Table::TranscoderQueueFile);
        column != "id" && !self.watched().contains(&column) && !is_assembled
    }

    /// Returns whether the owners of most events are found through this table.
    pub const fn is_indispensable(self) -> bool {
        matches!(self, Table::Release | Table::Label)
    }

    pub fn column(self, name: &str) -> Option<Column> {
        self.columns()
            .iter()
            .position(|column| *column == name)
            .map(|index| Column(index as u8))
    }

    pub fn by_name(name: &str) -> Option<Table> {
        Table::ALL
            .iter()
            .copied()
            .find(|table| table.name() == name)
    }
}
