//! Shapes of the platform's captured tables, drawn from a seed: types of keys and states,
//! partitions, and columns that Walhook does not read.

use std::fmt;

use crate::support::random::Random;

/// The types that the shapes use, with every state of the workload.
pub const TYPES: &str = "
    create domain key_number as bigint;
    create domain state_text as text;
    create domain state_varchar as varchar(40);
    create domain state_char as char(20);
    create type state_enum as enum ('draft', 'to_review', 'approved', 'rejected', 'require_changes', 'audit', 'lost', 'pending',
        'distributed', 'withdrawn', 'scheduled', 'transcoding', 'batched', 'complete', 'error', 'fault', 'batch_exception', 'paused',
        'waiting', 'incomplete', 'open', 'ready', 'paid', 'active', 'resolved', 'hidden')";

const KEYS: [&str; 6] = ["smallint", "int", "bigint", "text", "numeric", "key_number"];
const STATES: [&str; 7] = [
    "text",
    "varchar(40)",
    "char(20)",
    "state_enum",
    "state_text",
    "state_varchar",
    "state_char",
];

/// The table of which the workload changes keys, and replaces rows by one statement.
const REPLACED: &str = "distro_queue";

/// A captured table of the reference schema.
struct Captured {
    name: &'static str,
    /// The watched columns. `{state}` in [`Captured::columns`] is their drawn type, with `not null`
    /// or without.
    watched: &'static [&'static str],
    columns: &'static [(&'static str, &'static str)],
    /// A column of text, for generated columns.
    text: &'static str,
    /// The columns with long values.
    long: &'static [&'static str],
    /// Values of the first watched column, for partitions by it.
    few: &'static str,
}

const CAPTURED: [Captured; 6] = [
    Captured {
        name: "release",
        watched: &["review_status", "delivery_status"],
        columns: &[
            ("label_id", "bigint not null"),
            ("cat", "text"),
            ("title", "text"),
            ("review_status", "{state}"),
            ("delivery_status", "{state}"),
            ("review_issues", "jsonb"),
            ("pre_review_hold", "boolean not null default false"),
        ],
        text: "cat",
        long: &["title", "review_issues"],
        few: "'draft', 'approved'",
    },
    Captured {
        name: REPLACED,
        watched: &["status"],
        columns: &[
            ("release_id", "bigint not null"),
            ("outlet_id", "bigint"),
            ("status", "{state}"),
            ("takedown", "boolean not null default false"),
            ("message", "text"),
        ],
        text: "release_id::text",
        long: &["message"],
        few: "'complete', 'error'",
    },
    Captured {
        name: "transcoder_queue",
        watched: &["status"],
        columns: &[("track_id", "bigint not null"), ("status", "{state}")],
        text: "track_id::text",
        long: &[],
        few: "'waiting'",
    },
    Captured {
        name: "payment",
        watched: &["status"],
        columns: &[
            ("user_id", "text"),
            ("invoice_number", "text not null"),
            ("period_end", "date"),
            ("amount", "numeric(14, 2) not null"),
            ("total_due_usd", "numeric(14, 2) not null"),
            ("currency", "char(3) default 'USD'"),
            ("status", "{state}"),
        ],
        text: "invoice_number",
        long: &[],
        few: "'ready'",
    },
    Captured {
        name: "preflight_report",
        watched: &["generated_at"],
        columns: &[
            ("release_id", "bigint not null"),
            ("generated_at", "timestamptz{null}"),
            ("profile_name", "text not null"),
            ("profile_version", "bigint not null"),
            ("blocking", "bigint not null"),
            ("informational", "bigint not null"),
            ("requires_feedback", "bigint not null"),
        ],
        text: "profile_name",
        long: &[],
        few: "'2026-03-01T09:00:00.125Z', '2026-03-01T09:30:00.125Z'",
    },
    Captured {
        name: "stream_radar_flag",
        watched: &["status"],
        columns: &[
            ("dsp", "text not null"),
            ("isrc", "text not null"),
            ("release_id", "bigint not null"),
            ("track_id", "bigint"),
            ("severity", "text not null"),
            ("status", "{state}"),
            ("first_detected_at", "timestamptz"),
            ("last_detected_at", "timestamptz"),
            ("estimated_affected_streams", "bigint"),
            ("published_at", "timestamptz not null"),
            ("resolved_at", "timestamptz"),
        ],
        text: "dsp",
        long: &[],
        few: "'active'",
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Plain,
    /// By the first watched column: an update of it moves the row.
    List,
    /// By the key.
    Range,
    Hash,
    /// A table that inherits has the rows with even keys.
    Inherits,
}

/// The drawn shape of one table.
#[derive(Clone, Debug)]
pub struct TableShape {
    table: usize,
    key: &'static str,
    state: &'static str,
    nullable: bool,
    primary_key: bool,
    layout: Layout,
    stored: bool,
    virtual_column: bool,
    dropped: bool,
    /// The columns with their definitions, in their order.
    columns: Vec<(String, String)>,
}

impl fmt::Display for TableShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableShape {
            key, state, layout, ..
        } = self;
        write!(
            f,
            "{}: {key}, {state}, {layout:?}",
            CAPTURED[self.table].name
        )?;

        let properties = [
            (self.nullable, "nullable"),
            (self.primary_key, "primary key"),
            (self.stored, "stored column"),
            (self.virtual_column, "virtual column"),
            (self.dropped, "dropped column"),
        ];
        for (_, property) in properties.iter().filter(|(has, _)| *has) {
            write!(f, ", {property}")?;
        }

        Ok(())
    }
}

/// Draws the shapes of all captured tables. Only PostgreSQL 18 has virtual columns.
pub fn draw(seed: u64, has_virtual: bool) -> Vec<TableShape> {
    let mut random = Random::new(seed);
    (0..CAPTURED.len())
        .map(|table| TableShape::draw(table, has_virtual, &mut random))
        .collect()
}

impl TableShape {
    fn draw(table: usize, has_virtual: bool, random: &mut Random) -> TableShape {
        let captured = &CAPTURED[table];
        let key = random.of(&KEYS);
        let state = random.of(&STATES);

        let layout = random.of(&[
            Layout::Plain,
            Layout::Plain,
            Layout::List,
            Layout::Range,
            Layout::Hash,
            Layout::Inherits,
        ]);

        // Known limit: the trigger that redirects a row inserts it before the statement that has
        // deleted it ends, so the outbox has the two changes in this order, and the row counts as
        // new. This table's rows are replaced in that way.
        let layout = if layout == Layout::Inherits && captured.name == REPLACED {
            Layout::Plain
        } else {
            layout
        };

        let primary_key = random.percent(60);

        // A primary key contains the column by which the table is partitioned.
        let nullable = random.percent(30) && !(primary_key && layout == Layout::List);
        let stored = random.percent(40);

        // Elsewhere, no replica identity is safe beside one.
        let virtual_column =
            random.percent(50) && has_virtual && layout == Layout::Plain && !nullable;
        let dropped = random.percent(40);
        let null = if nullable { "" } else { " not null" };
        let define = |definition: &str| {
            definition
                .replace("{state}", &format!("{state}{null}"))
                .replace("{null}", null)
        };

        let mut columns = vec![("id".to_owned(), format!("{key} not null"))];
        columns.extend(
            captured
                .columns
                .iter()
                .map(|(name, definition)| ((*name).to_owned(), define(definition))),
        );

        let expression = format!("generated always as (upper({}))", captured.text);

        if stored {
            columns.push(("shown".into(), format!("text {expression} stored")));
        }

        if virtual_column {
            columns.push(("computed".into(), format!("text {expression} virtual")));
        }

        if dropped {
            columns.push(("gone".into(), "int default 7".into()));
        }

        // Fisher and Yates.
        for last in (1..columns.len()).rev() {
            columns.swap(last, random.below(last + 1));
        }

        TableShape {
            table,
            key,
            state,
            nullable,
            primary_key,
            layout,
            stored,
            virtual_column,
            dropped,
            columns,
        }
    }

    /// Returns the statements that replace the table of the reference schema. With `inline`, long
    /// values are stored inline.
    pub fn statements(&self, inline: bool) -> String {
        let Captured {
            name,
            watched,
            long,
            ..
        } = &CAPTURED[self.table];

        let columns: Vec<String> = self
            .columns
            .iter()
            .map(|(name, definition)| format!("{name} {definition}"))
            .collect();
        let by = match self.layout {
            Layout::List => format!(" partition by list ({})", watched[0]),
            Layout::Range => " partition by range (id)".into(),
            Layout::Hash => " partition by hash (id)".into(),
            Layout::Plain | Layout::Inherits => String::new(),
        };

        let mut sql = format!(
            "drop table {name} cascade; create table {name} ({}){by};\n",
            columns.join(", ")
        );

        if self.primary_key {
            let more = if self.layout == Layout::List {
                format!(", {}", watched.join(", "))
            } else {
                String::new()
            };
            sql += &format!("alter table {name} add primary key (id{more});\n");
        }

        // Before partitions and the table that inherits are created: their columns have other
        // numbers.
        if self.dropped {
            sql += &format!("alter table {name} drop gone;\n");
        }

        if inline || self.virtual_column {
            sql.extend(
                long.iter()
                    .map(|column| format!("alter table {name} alter {column} set storage main;\n")),
            );
        }

        sql + &self.parts()
    }

    /// Returns the statements that create the partitions, or the table that inherits.
    fn parts(&self) -> String {
        let Captured { name, few, .. } = &CAPTURED[self.table];
        let part = |suffix: &str, bounds: &str| {
            format!("create table {name}_{suffix} partition of {name} {bounds};\n")
        };

        // The workload changes its keys. If that moved a row, the change would count as a deletion
        // and an insertion.
        let keys_change = *name == REPLACED;

        match self.layout {
            Layout::Plain => String::new(),
            Layout::List => {
                part("some", &format!("for values in ({few})")) + &part("rest", "default")
            }
            Layout::Range if keys_change => part("all", "for values from (minvalue) to (maxvalue)"),
            Layout::Range => {
                part("low", "for values from (minvalue) to ('1200')")
                    + &part("high", "for values from ('1200') to (maxvalue)")
            }
            Layout::Hash if keys_change => part("all", "for values with (modulus 1, remainder 0)"),
            Layout::Hash => {
                part("0", "for values with (modulus 2, remainder 0)")
                    + &part("1", "for values with (modulus 2, remainder 1)")
            }
            Layout::Inherits => self.inheritance(),
        }
    }

    fn inheritance(&self) -> String {
        let name = CAPTURED[self.table].name;
        let written = self.columns.iter().map(|(column, _)| column.as_str());
        let written: Vec<&str> = written
            .filter(|column| !["shown", "computed", "gone"].contains(column))
            .collect();
        let new: Vec<String> = written
            .iter()
            .map(|column| format!("new.{column}"))
            .collect();
        let key = if self.primary_key {
            "primary key (id)"
        } else {
            ""
        };

        format!(
            "create table {name}_even ({key}) inherits ({name});
             create function redirect_{name}() returns trigger language plpgsql as $$ begin
                 if new.id::bigint % 2 = 1 then return new; end if;
                 insert into {name}_even ({}) values ({});
                 return null;
             end $$;
             create trigger redirect before insert on {name} for each row execute function redirect_{name}();\n",
            written.join(", "),
            new.join(", ")
        )
    }
}
