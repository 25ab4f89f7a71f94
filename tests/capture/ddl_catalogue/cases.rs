//! The catalogue: each statement of the platform, and what follows from it with each way of
//! capture.

use Expected::{Lost, Refused, Rejects, Repaired, Reported, Waits, Works};
use Setup::Full;

/// How changes are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// From the WAL, with replica identity full.
    Full,
    /// From the WAL, with an index as replica identity.
    Index,
    Trigger,
}

/// What follows from a statement. The text is part of an error, or of readiness and of a failure of
/// `walhook check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Every statement of the platform succeeds, every event is raised, and nothing is reported.
    Works,
    /// Statements fail until the running process has changed the table. Every event is raised, and
    /// nothing is reported.
    Repaired,
    /// PostgreSQL refuses the DDL.
    Refused(&'static str),
    /// Changes of this table are lost, and reported. Other tables are captured.
    Lost(&'static str),
    /// Every event is raised, and readiness or `walhook check` reports something.
    Reported(&'static str),
    /// Capture of all tables waits. After the remedy, every event is raised.
    Waits(&'static str),
    /// Statements of the platform fail until somebody acts.
    Rejects(&'static str),
}

/// A table that the case changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An ordinary table with a primary key.
    Payment,
    /// Partitioned, with a primary key.
    Keyed,
    /// Partitioned, without a primary key.
    Keyless,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub subject: Subject,
    /// The table that the platform's statements name, if it is not the subject.
    pub target: Option<&'static str>,
    /// Statements, each in a transaction of its own. `{from}` and `{to}` are the bounds of the ids
    /// of the case's rows.
    pub ddl: &'static [&'static str],
    pub undo: &'static [&'static str],
    /// A query that returns true when the running process has prepared what the DDL has created.
    pub settled: Option<&'static str>,
    /// A setting that the remedy needs, and keeps.
    pub remedy: Option<(&'static str, &'static str)>,
    pub since: u32,
    /// With replica identity full, with an index, and with triggers.
    pub expected: [Expected; 3],
    /// Other expectations from a version on.
    pub exceptions: &'static [(u32, Setup, Expected)],
}

impl Case {
    const fn of(
        name: &'static str,
        ddl: &'static [&'static str],
        undo: &'static [&'static str],
    ) -> Case {
        Case {
            name,
            subject: Subject::Payment,
            target: None,
            ddl,
            undo,
            settled: None,
            remedy: None,
            since: 14,
            expected: [Works; 3],
            exceptions: &[],
        }
    }

    const fn on(self, subject: Subject) -> Case {
        Case { subject, ..self }
    }

    const fn into(self, target: &'static str) -> Case {
        Case {
            target: Some(target),
            ..self
        }
    }

    const fn after(self, settled: &'static str) -> Case {
        Case {
            settled: Some(settled),
            ..self
        }
    }

    const fn with(self, key: &'static str, value: &'static str) -> Case {
        Case {
            remedy: Some((key, value)),
            ..self
        }
    }

    const fn since(self, since: u32) -> Case {
        Case { since, ..self }
    }

    const fn expect(self, full: Expected, index: Expected, trigger: Expected) -> Case {
        Case {
            expected: [full, index, trigger],
            ..self
        }
    }

    const fn except(self, exceptions: &'static [(u32, Setup, Expected)]) -> Case {
        Case { exceptions, ..self }
    }

    pub fn expected(&self, version: u32, setup: Setup) -> Expected {
        let exception = self
            .exceptions
            .iter()
            .rev()
            .find(|(since, of, _)| *since <= version && *of == setup);
        exception.map_or(self.expected[setup as usize], |(_, _, expected)| *expected)
    }
}

/// Whether the new partitions have the replica identity that Walhook sets.
const HAS_FULL: &str =
    "select bool_and(relreplident = 'f') from pg_class where relname like '%\\_new'";

/// Takes longer than the running process needs to inspect the tables.
const INSPECTED: &str = "select pg_sleep(2) is not null";
const LISTED: &str =
    "every UPDATE and DELETE fails, because the table is in publication other without";

const STATUS_TO_ENUM: &str = "alter table payment alter status type stage using status::stage";
const STATUS_TO_TEXT: &str = "alter table payment alter status type text";

pub const CASES: &[Case] = &[
    Case::of("no statement", &[], &[]),
    Case::of("add a column", &["alter table payment add extra text"], &["alter table payment drop extra"]),
    Case::of(
        "add a column with a volatile default",
        &["alter table payment add extra timestamptz default clock_timestamp()"],
        &["alter table payment drop extra"],
    ),
    Case::of(
        "add an identity column",
        &["alter table payment add extra bigint generated always as identity"],
        &["alter table payment drop extra"],
    ),
    Case::of("drop a column", &["alter table payment drop note"], &["alter table payment add note text"]),
    Case::of(
        "rename a column",
        &["alter table payment rename note to remark"],
        &["alter table payment rename remark to note"],
    ),
    Case::of(
        "rename a mapped column",
        &["alter table payment rename period_end to period_until"],
        &["alter table payment rename period_until to period_end"],
    )
    .with("source.tables.payment.formerly.period_end", "period_until")
    .expect(Waits("column period_end of public.payment"), Waits("column period_end of public.payment"), Lost("lacks period_end")),
    Case::of(
        "drop a mapped column",
        &["alter table payment drop currency"],
        &["alter table payment add currency char(3) default 'USD'"],
    )
    .with("source.tables.payment.formerly.currency", "note")
    .expect(Waits("column currency of public.payment"), Waits("column currency of public.payment"), Lost("lacks currency")),
    Case::of(
        "add a stored generated column",
        &["alter table payment add doubled numeric generated always as (amount * 2) stored"],
        &["alter table payment drop doubled"],
    ),
    Case::of(
        "add a virtual generated column",
        &["alter table payment add doubled numeric generated always as (amount * 2) virtual"],
        &["alter table payment drop doubled"],
    )
    .since(18)
    .expect(Repaired, Works, Works),
    Case::of(
        "widen a column",
        &["alter table payment alter amount type numeric(20, 4)"],
        &["alter table payment alter amount type numeric(14, 2)"],
    ),
    Case::of(
        "change the type of a column",
        &["alter table payment alter note type int using null"],
        &["alter table payment alter note type text"],
    ),
    Case::of(
        "change the type of the key",
        &["alter table payment alter id type numeric"],
        &["alter table payment alter id type bigint"],
    ),
    Case::of(
        "change the type of a watched column",
        &["alter table payment alter status type varchar(40)"],
        &[STATUS_TO_TEXT],
    ),
    Case::of(
        "change a watched column to an enum, and add a value",
        &["create type stage as enum ('draft')", "alter type stage add value 'ready'", STATUS_TO_ENUM],
        &[STATUS_TO_TEXT, "drop type stage"],
    ),
    Case::of(
        "change a watched column to a domain, and change the domain",
        &[
            "create domain stage as text",
            STATUS_TO_ENUM,
            "alter domain stage add constraint known check (value <> 'lost')",
            "alter domain stage drop constraint known",
        ],
        &[STATUS_TO_TEXT, "drop domain stage"],
    ),
    Case::of(
        "allow null in a watched column",
        &["alter table payment alter status drop not null"],
        &["alter table payment alter status set not null"],
    )
    .expect(Works, Refused("is in index used as replica identity"), Works),
    Case::of(
        "create a partition of a table with a key",
        &["create table transcoder_queue_new partition of transcoder_queue for values from ({from}) to ({to})"],
        &["drop table transcoder_queue_new"],
    )
    .on(Subject::Keyed)
    .after(HAS_FULL),
    Case::of(
        "create a partition of a table without a key",
        &["create table distro_queue_new partition of distro_queue for values from ({from}) to ({to})"],
        &["drop table distro_queue_new"],
    )
    .on(Subject::Keyless)
    .after(HAS_FULL),
    Case::of(
        "create a partition of a table without a key, and write at once",
        &["create table distro_queue_next partition of distro_queue for values from ({from}) to ({to})"],
        &["drop table distro_queue_next"],
    )
    .on(Subject::Keyless)
    .expect(Repaired, Repaired, Works),
    Case::of(
        "create a partition that belongs to another role",
        &[
            "create table transcoder_queue_new partition of transcoder_queue for values from ({from}) to ({to})",
            "reset role; alter table transcoder_queue_new owner to {role}_other",
        ],
        &["drop table transcoder_queue_new", "set role {role}"],
    )
    .on(Subject::Keyed)
    .expect(Lost("status in public.transcoder_queue_new"), Lost("status in public.transcoder_queue_new"), Works),
    Case::of(
        "attach an empty partition",
        &[
            "create table transcoder_queue_new (like transcoder_queue including all)",
            "alter table transcoder_queue attach partition transcoder_queue_new for values from ({from}) to ({to})",
        ],
        &["drop table transcoder_queue_new"],
    )
    .on(Subject::Keyed)
    .after(HAS_FULL),
    Case::of(
        "attach a partition with a row",
        &[
            "create table transcoder_queue_new (like transcoder_queue including all)",
            "insert into transcoder_queue_new (id, track_id, status) values ({to} - 1, 1, 'waiting')",
            "alter table transcoder_queue attach partition transcoder_queue_new for values from ({from}) to ({to})",
        ],
        &["drop table transcoder_queue_new"],
    )
    .on(Subject::Keyed)
    .expect(Lost("transcoder_queue_new"), Lost("transcoder_queue_new"), Works),
    Case::of(
        "detach a partition",
        &["alter table transcoder_queue detach partition transcoder_queue_old"],
        &["alter table transcoder_queue attach partition transcoder_queue_old for values from (minvalue) to (0)"],
    )
    .on(Subject::Keyed),
    Case::of(
        "detach a partition concurrently",
        &["alter table transcoder_queue detach partition transcoder_queue_old concurrently"],
        &["alter table transcoder_queue attach partition transcoder_queue_old for values from (minvalue) to (0)"],
    )
    .on(Subject::Keyed),
    Case::of(
        "drop a partition",
        &["drop table distro_queue_old"],
        &["create table distro_queue_old partition of distro_queue for values from (minvalue) to (0)"],
    )
    .on(Subject::Keyless),
    Case::of(
        "create a table that inherits",
        &["create table payment_child () inherits (payment)"],
        &["drop table payment_child"],
    )
    .into("payment_child")
    .expect(Lost("lacks public.payment_child"), Lost("lacks public.payment_child"), Lost("trigger_missing")),
    Case::of(
        "drop and create a mapped table",
        &[
            "create table fresh (like payment including all)",
            "drop table payment",
            "alter table fresh rename to payment",
            "alter index fresh_pkey rename to payment_pkey; alter index fresh_id_invoice_number_idx rename to payment_invoice",
        ],
        &[],
    )
    .expect(Lost("lacks public.payment"), Lost("lacks public.payment"), Lost("trigger_missing")),
    Case::of("set unlogged and logged", &["alter table payment set unlogged"], &["alter table payment set logged"])
        .expect(Refused("it is part of a publication"), Refused("it is part of a publication"), Works),
    Case::of("rewrite the table", &["vacuum full payment", "cluster payment using payment_pkey"], &[]),
    Case::of("truncate the table", &["truncate payment"], &[]),
    Case::of(
        "drop the index that is the replica identity",
        &["drop index if exists walhook_identity_payment"],
        &[],
    )
    // The replica identity is full until `walhook setup` builds the index again.
    .expect(Works, Repaired, Works),
    Case::of(
        "drop another unique index",
        &["drop index payment_invoice"],
        &["create unique index payment_invoice on payment (id, invoice_number)"],
    ),
    Case::of(
        "drop the primary key",
        &["alter table payment drop constraint payment_pkey"],
        &["alter table payment add primary key (id)"],
    ),
    Case::of(
        "set the default replica identity",
        &["alter table payment replica identity default"],
        &[],
    )
    .after(INSPECTED)
    .expect(Lost("identity_lost"), Lost("identity_lost"), Works),
    Case::of(
        "give the table to another owner",
        &["reset role", "alter table payment owner to {role}_other"],
        &["alter table payment owner to {role}", "set role {role}"],
    )
    // With an index, rows are completed from the table, which needs a privilege. Otherwise only a
    // repair needs it.
    .expect(Works, Reported("table public.payment privilege: cannot read id"), Works),
    Case::of(
        "enable row security",
        &["alter table payment enable row level security"],
        &["alter table payment disable row level security"],
    ),
    Case::of(
        "publish the table to another subscriber",
        &["create publication other for table payment", "select pg_create_logical_replication_slot('other', 'pgoutput')"],
        &["select pg_drop_replication_slot('other')", "drop publication other"],
    ),
    Case::of(
        "publish the table elsewhere, with a stored generated column",
        &[
            "create publication other for table payment",
            "alter table payment add doubled numeric generated always as (amount * 2) stored",
        ],
        &["alter table payment drop doubled", "drop publication other"],
    )
    // The other publication does not have the column: the replica identity becomes an index.
    .except(&[(18, Full, Repaired)]),
    Case::of(
        "publish some columns elsewhere",
        &["create publication other for table payment (id, amount)"],
        &["drop publication other"],
    )
    .since(15)
    // The list has the primary key, but not the replica identity that Walhook needs.
    .expect(Rejects(LISTED), Rejects(LISTED), Works),
    Case::of(
        "publish some rows elsewhere",
        &["create publication other for table payment where (id > 0)"],
        &["drop publication other"],
    )
    .since(15),
];
