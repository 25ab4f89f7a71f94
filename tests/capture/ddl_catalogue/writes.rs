//! What the platform writes to the table of a case, and the events that follow.

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::{Client, Error};

use super::cases::Subject;

/// The rows that one case uses, by their offset from the first.
const INSERTED: i64 = 1;
const INSERTED_READY: i64 = 2;
const COPIED: i64 = 3;
const MERGED_NEW: i64 = 4;
const MERGED: i64 = 5;
const MANY: std::ops::RangeInclusive<i64> = 10..=29;

/// The first version that has MERGE.
const MERGE_VERSION: u32 = 15;

/// How the platform writes to a table. `{id}` and `{status}` stand for values.
pub struct Shape {
    pub table: &'static str,
    columns: &'static str,
    row: &'static str,
    /// A status that raises no event, and one that raises one event of this kind.
    quiet: &'static str,
    loud: &'static str,
    pub kind: &'static str,
    /// The name of the row's id in that event.
    pub id: &'static str,
}

pub const fn shape(subject: Subject) -> Shape {
    match subject {
        Subject::Payment => Shape {
            table: "payment",
            columns: "id, user_id, invoice_number, amount, total_due_usd, status",
            row: "{id}, 1, 'I', 1, 1, '{status}'",
            quiet: "draft",
            loud: "ready",
            kind: "payment.statement_ready",
            id: "payment_request_id",
        },
        Subject::Keyed => Shape {
            table: "transcoder_queue",
            columns: "id, track_id, status",
            row: "{id}, 1, '{status}'",
            quiet: "waiting",
            loud: "complete",
            kind: "transcode.completed",
            id: "transcoder_queue_id",
        },
        Subject::Keyless => Shape {
            table: "distro_queue",
            columns: "id, release_id, status",
            row: "{id}, 1, '{status}'",
            quiet: "scheduled",
            loud: "complete",
            kind: "delivery.completed",
            id: "distro_queue_id",
        },
    }
}

/// One statement of the platform.
pub enum Write {
    Statement { name: &'static str, text: String },
    Copy { into: String, rows: String },
}

impl Write {
    pub const fn name(&self) -> &'static str {
        match self {
            Write::Statement { name, .. } => name,
            Write::Copy { .. } => "COPY",
        }
    }

    pub async fn execute(&self, client: &Client) -> Result<(), Error> {
        match self {
            Write::Statement { text, .. } => client.batch_execute(text).await,
            Write::Copy { into, rows } => {
                let mut sink = std::pin::pin!(client.copy_in(into.as_str()).await?);
                sink.send(Bytes::from(rows.clone())).await?;
                sink.finish().await?;
                Ok(())
            }
        }
    }
}

/// Returns the statements on `target` for the rows after `from`, in their order.
pub fn writes(shape: &Shape, target: &str, from: i64, version: u32) -> Vec<Write> {
    let Shape {
        columns,
        quiet,
        loud,
        ..
    } = *shape;

    let row = |id: &str, status: &str| shape.row.replace("{id}", id).replace("{status}", status);
    let at = |offset: i64| (from + offset).to_string();
    let insert = format!("insert into {target} ({columns})");
    let first = at(*MANY.start());
    let last = at(*MANY.end());
    let statement = |name, text| Write::Statement { name, text };

    let mut writes = vec![
        statement(
            "INSERT",
            format!(
                "{insert} values ({}), ({}), ({})",
                row(&at(INSERTED), quiet),
                row(&at(INSERTED_READY), loud),
                row(&at(MERGED), quiet)
            ),
        ),
        statement(
            "UPDATE",
            format!(
                "update {target} set status = '{loud}' where id = {}",
                at(INSERTED)
            ),
        ),
        Write::Copy {
            into: format!("copy {target} ({columns}) from stdin"),
            rows: row(&at(COPIED), loud).replace('\'', "").replace(", ", "\t") + "\n",
        },
        statement(
            "INSERT of many",
            format!(
                "{insert} select {} from generate_series({first}, {last}) n",
                row("n", quiet)
            ),
        ),
        statement(
            "UPDATE of many",
            format!("update {target} set status = '{loud}' where id between {first} and {last}"),
        ),
    ];

    if version >= MERGE_VERSION {
        let merge = format!(
            "merge into {target} t using (values ({}), ({})) as s (id) on t.id = s.id
             when matched then update set status = '{loud}'
             when not matched then insert ({columns}) values ({})",
            at(MERGED),
            at(MERGED_NEW),
            row("s.id", loud)
        );
        writes.push(statement("MERGE", merge));
    }

    writes.push(statement(
        "DELETE",
        format!("delete from {target} where id = {}", at(COPIED)),
    ));
    writes
}

/// Returns the ids of the rows that each raise one event.
pub fn expected_ids(from: i64, version: u32) -> Vec<i64> {
    let merged: &[i64] = if version >= MERGE_VERSION {
        &[MERGED_NEW, MERGED]
    } else {
        &[]
    };

    let offsets = [INSERTED, INSERTED_READY, COPIED]
        .into_iter()
        .chain(merged.iter().copied())
        .chain(MANY);
    offsets.map(|offset| from + offset).collect()
}
