//! A replication connection: receives messages of the output plugin and sends acknowledgements.

use bytes::{Buf, Bytes};
use pg_walstream::{PgReplicationConnection, PgResult, ReplicationError};
use tokio_util::sync::CancellationToken;

use super::decode::PROTOCOL_VERSION;
use crate::capture::error::CaptureError;
use crate::domain::lsn::{Lineage, Lsn, TimelineHistory};
use crate::postgres::without_transaction_timeout;

/// The size to which libpq's input buffer is grown before streaming. libpq reads until its buffer
/// is full, and pg_walstream then waits until the socket is readable. If everything has arrived, it
/// is not: a message larger than libpq's buffer would wait for the next message, and one larger
/// than the socket's buffer would wait forever.
const INPUT_BUFFER_BYTES: usize = 1 << 20;

/// `XLogData`: the tag, the LSN of the data, the end of the WAL, and the server's time.
const XLOG_DATA_HEADER: usize = 25;
/// `Primary keepalive`: the tag, the end of the WAL, the server's time, and whether a reply is
/// wanted.
const KEEPALIVE_LENGTH: usize = 18;

/// A replication connection to one server.
pub(super) struct ReplicationConnection {
    inner: PgReplicationConnection,
    lineage: Lineage,
    received: Lsn,
    acknowledged: Lsn,
    has_received: bool,
    never: CancellationToken,
}

impl ReplicationConnection {
    /// Connects and reads the server's lineage.
    pub async fn open(conninfo: &str) -> Result<ReplicationConnection, CaptureError> {
        let mut inner = PgReplicationConnection::connect_async(conninfo).await?;
        let lineage = identity(&inner.exec_async("IDENTIFY_SYSTEM").await?);
        let lineage = lineage.ok_or_else(|| {
            CaptureError::Protocol("IDENTIFY_SYSTEM returned no system and timeline".into())
        })?;

        inner
            .exec_async(&format!("select repeat('x', {INPUT_BUFFER_BYTES})"))
            .await?;
        // The server counts the time for which it sends a transaction, and waits for this process
        // meanwhile.
        inner
            .exec_async(&without_transaction_timeout(false))
            .await?;
        let received = Lsn::ZERO;
        let acknowledged = Lsn::ZERO;
        let never = CancellationToken::new();

        Ok(ReplicationConnection {
            inner,
            lineage,
            received,
            acknowledged,
            has_received: true,
            never,
        })
    }

    /// Returns the cluster, and its timeline when the connection was opened.
    pub fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Reads the server's timeline history. None if the server no longer has the history file.
    pub async fn timeline_history(&mut self) -> Result<Option<TimelineHistory>, CaptureError> {
        const FILE_IS_MISSING: &str = "[58P01]";
        let current = self.lineage.timeline;
        if current == 1 {
            return Ok(Some(TimelineHistory::new(current, Vec::new())));
        }

        match self
            .inner
            .exec_async(&format!("TIMELINE_HISTORY {current}"))
            .await
        {
            Ok(row) => {
                let ancestors = parse_timeline_history(&row.get_value(0, 1).unwrap_or_default())?;
                Ok(Some(TimelineHistory::new(current, ancestors)))
            }
            Err(error) if error.to_string().contains(FILE_IS_MISSING) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Starts streaming at `from`.
    pub async fn start(
        &mut self,
        slot: &str,
        publication: &str,
        from: Lsn,
    ) -> Result<(), ReplicationError> {
        let publications = format!("\"{}\"", publication.replace('"', "\"\""));
        let protocol = PROTOCOL_VERSION.to_string();
        let options = [
            ("proto_version", &*protocol),
            ("publication_names", &*publications),
            ("messages", "on"),
        ];

        self.acknowledged = from;
        self.inner
            .start_replication_async(slot, from.0, &options)
            .await
    }

    /// Receives the next message of the output plugin. Cancel-safe.
    pub async fn next(&mut self) -> Result<Bytes, CaptureError> {
        loop {
            let message = self.inner.get_copy_data_async(&self.never).await?;
            self.has_received = true;

            match message.first() {
                Some(b'w') if message.len() >= XLOG_DATA_HEADER => {
                    let mut header = &message[9..];
                    self.received = self.received.max(Lsn(header.get_u64()));
                    return Ok(message.slice(XLOG_DATA_HEADER..));
                }
                Some(b'k') if message.len() >= KEEPALIVE_LENGTH => {
                    let mut header = &message[1..];
                    self.received = self.received.max(Lsn(header.get_u64()));

                    if message[KEEPALIVE_LENGTH - 1] != 0 {
                        self.send_status(false).await?;
                    }
                }
                tag => {
                    return Err(CaptureError::Protocol(format!(
                        "an unknown message {tag:?}"
                    )));
                }
            }
        }
    }

    /// Returns the end of the WAL that the server has sent or skipped.
    pub fn received(&self) -> Lsn {
        self.received
    }

    /// Returns whether anything has arrived since the last call, keepalives included.
    pub fn take_has_received(&mut self) -> bool {
        std::mem::take(&mut self.has_received)
    }

    /// Acknowledges everything before `lsn` and requests a reply. The reply makes the socket
    /// readable, so that data which has arrived unnoticed is read too.
    pub async fn acknowledge(&mut self, lsn: Lsn) -> Result<(), CaptureError> {
        self.acknowledged = self.acknowledged.max(lsn);
        self.send_status(true).await
    }

    async fn send_status(&mut self, wants_reply: bool) -> Result<(), CaptureError> {
        // Never beyond what was received.
        let acknowledged = self.acknowledged.min(self.received).0;
        let sent = self.inner.send_standby_status_update(
            self.received.0,
            acknowledged,
            acknowledged,
            wants_reply,
        );

        Ok(sent.await?)
    }
}

fn identity(row: &PgResult) -> Option<Lineage> {
    Some(Lineage {
        system_identifier: row.get_value(0, 0)?.parse().ok()?,
        timeline: row.get_value(0, 1)?.parse().ok()?,
    })
}

/// Parses a timeline history file. Each line has an ancestor, the LSN at which it ended, and a
/// reason. Comments begin with `#`.
fn parse_timeline_history(file: &str) -> Result<Vec<(u32, Lsn)>, CaptureError> {
    let lines = file
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parsed = lines.map(|line| {
        let mut fields = line.split_whitespace();
        let entry = fields
            .next()
            .and_then(|field| field.parse().ok())
            .zip(fields.next().and_then(|f| f.parse().ok()));
        entry.ok_or_else(|| {
            CaptureError::Protocol(format!(
                "the line `{line}` of a timeline history file is invalid"
            ))
        })
    });

    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_history_has_ancestors_and_their_ends() {
        let file = "1\t0/3000000\tno recovery target specified\n\n# a comment\n 2\tA/FF\tbefore 2026-03-01 09:00:00+00\n";
        let history = parse_timeline_history(file).unwrap();

        assert_eq!(history, [(1, Lsn(0x300_0000)), (2, Lsn(0xA_0000_00FF))]);
        assert!(parse_timeline_history("1 somewhere").is_err());
        assert_eq!(parse_timeline_history("").unwrap(), []);
    }
}
