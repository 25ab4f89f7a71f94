//! The section `source`: the primary and how it is captured.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{Period, TableMappings, redact_url};

section! { Source:
    /// URL of the primary, the platform's Postgres. Logical replication uses the same URL.
    /// Required.
    #[serde(serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"postgres://walhook@db.internal/platform?sslmode=verify-full")]
    url: Option<SecretString>,
    /// How changes are captured.
    capture: CaptureMode = CaptureMode::Wal,
    /// URL of the store whose events are read with `capture = "log"`: another store, which
    /// `walhook run --roles capture` fills. Name all of its hosts, with
    /// `target_session_attrs=read-write`.
    #[serde(serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"postgres://walhook@log1.internal,log2.internal/walhook?target_session_attrs=read-write")]
    log_url: Option<SecretString>,
    /// How often an idle outbox, or an idle log, is polled (trigger capture, and `capture = "log"`).
    poll_interval: Period = Period(Duration::from_millis(100)),
    /// Name of the replication slot. Two installations on one server need two names. With
    /// `capture = "log"`, it only names the checkpoint.
    slot: String = "walhook".into(),
    /// Name of the publication.
    publication: String = "walhook".into(),
    /// How updates and deletes of captured tables write old values to the WAL.
    replica_identity: ReplicaIdentity = ReplicaIdentity::Full,
    /// Create the slot as a failover slot, which standbys with `sync_replication_slots` keep
    /// (PostgreSQL 17 and later).
    failover: bool = true,
    /// Whether to wait until a transaction is visible on the primary before its events are stored
    /// and sent.
    await_visibility: AwaitVisibility = AwaitVisibility::Auto,
    /// Distribution statuses of your own, recognised in addition to the eight documented ones.
    distribution_statuses: Vec<String>,
    /// How often a heartbeat message is written to the WAL and expected back.
    heartbeat: Period = Period::secs(10),
    /// Keep the last seen watched columns of every watched row, so that `walhook repair` can find
    /// transitions that a gap hides. About 95 bytes per row in the store.
    ledger: bool = true,
    /// How the platform names its tables and columns, and what its values mean. Anything not
    /// mentioned is named as in the reference schema; see the [integrator's guide](integrators.md).
    /// The `name` of a mapped `label` is read only if it is mentioned, because no event needs it.
    ///
    /// ```toml
    /// [source.tables.distro_queue]
    /// table = "distribution.jobs"
    /// columns = { status = "state", release_id = "album_id" }
    /// values = { status = { 5 = "complete", 6 = "error" } }
    /// computed = { message = "(select e.text from distribution.errors e where e.job = this.id)" }
    /// [source.tables.stream_radar_flag]
    /// absent = true
    /// ```
    tables: TableMappings,
    /// SQL that finds the rows of a looked-up table if a mapping is not enough; `$1` is the array
    /// of keys as text.
    ///
    /// ```toml
    /// [source.lookups]
    /// label = "select l.id, a.user_id from labels l join accounts a on a.id = l.account_id where l.id = any($1::bigint[])"
    /// ```
    lookups: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CaptureMode {
    /// Logical replication.
    Wal,
    /// Triggers that write an outbox, for primaries without logical replication.
    Trigger,
    /// Events are read from the store at `source.log_url`, where another process has stored them.
    /// Nothing is read from the primary, except owners' e-mail addresses from `source.url`.
    Log,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ReplicaIdentity {
    /// Every update and delete writes the whole old row.
    Full,
    /// A unique index over the id and the watched columns; old values are written when one of them
    /// changes.
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AwaitVisibility {
    /// Wait while the primary's `synchronous_standby_names` is not empty.
    Auto,
    /// Always wait.
    Always,
    /// Never wait: a failover may undo transactions whose events were sent.
    Never,
}
