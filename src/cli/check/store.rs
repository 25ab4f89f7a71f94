//! Checks of the store: reachable, migrated, separate from the primary's database, with a
//! checkpoint and without gaps.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::config::Source;
use crate::domain::time::millis;
use crate::primary::finding::{Finding, Remedy};
use crate::primary::inspect::Database;
use crate::primary::lineage;
use crate::store::migrate::{self, Identity, Incompatibility, Schema};
use crate::store::processes::Process;
use crate::store::unrouted::UnroutedCount;
use crate::store::{Result, Store};

/// Unrouted events that are counted.
const MAX_COUNTED: i64 = 100_000;

/// What the store knows of the position up to which changes were read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Position {
    pub is_stored: bool,
    pub has_gap: bool,
}

/// Inspects the store. `primary` is none if the primary did not answer.
pub(super) async fn inspect(
    source: &Source,
    url: &str,
    primary: Option<&Database>,
    findings: &mut Vec<Finding>,
) -> Result<Position> {
    let store = Store::open(url, 1)?;
    let before = Timestamp::now();
    let identity = store.identity().await?;

    findings.push(Finding::ok(
        "store",
        format!("database {}", identity.database),
    ));
    findings.push(Finding::clock("store clock", identity.now, before));

    if identity.encoding != "UTF8" {
        findings.push(Finding::fail(
            "store encoding",
            identity.encoding.clone(),
            migrate::ENCODING_FIX,
        ));
    }

    if let Some(primary) = primary {
        let same = identity.system_identifier == primary.system_identifier
            && identity.database == primary.name;
        findings.push(match same {
            true => Finding::warn(
                "store database",
                "the platform's own: everything that Walhook writes is decoded by its slot",
                "set store.url to a separate database, on the same server or another",
            ),
            false => Finding::ok("store database", "separate from the platform's"),
        });

        if identity.system_identifier == primary.system_identifier
            && primary.has_asynchronous_standbys
        {
            findings.push(Finding::warn(
                "store failover",
                "the store fails over together with the primary, asynchronously: a failover can undo events and the checkpoint, \
                 without a gap that shows it",
                "make replication synchronous, or set store.url to a server that does not fail over with the primary",
            ));
        }
    }

    findings.push(synchronous_commit(&identity));
    let schema = migrate::schema(url).await?;
    match (schema, schema.incompatibility()) {
        (_, Some(Incompatibility { problem, fix })) => {
            findings.push(Finding::fail("store schema", problem, fix));
            return Ok(Position::default());
        }
        (Schema::Newer { found, known }, None) => findings.push(Finding::ok(
            "store schema",
            format!("version {found}, of a later build; this build knows version {known} and can work on it"),
        )),
        _ => findings.push(Finding::ok("store schema", "up to date")),
    }

    findings.push(partitions(&store, before).await?);
    let checkpoint = store.checkpoint(&source.slot).await?;
    let lineages = primary
        .and_then(|primary| primary.lineage)
        .zip(checkpoint.as_ref());

    findings.extend(
        lineages.and_then(|(found, checkpoint)| lineage::replaced(found, checkpoint.lineage)),
    );

    let is_stored = checkpoint.is_some();
    findings.push(match checkpoint {
        Some(checkpoint) => Finding::ok("checkpoint", format!("at {}", checkpoint.progress)),
        None => Finding::fail(
            "checkpoint",
            format!("none for slot {}", source.slot),
            Remedy::SETUP,
        ),
    });

    let gaps = store.open_gaps(&source.slot).await?;
    let has_gap = !gaps.is_empty();
    if !has_gap {
        findings.push(Finding::ok("gaps", "none"));
    }

    let open = gaps.into_iter();
    findings.extend(
        open.map(|gap| Finding::fail(format!("gap {}", gap.reason), gap.detail, Remedy::REPAIR)),
    );

    if is_stored {
        findings.push(processes(&store.processes(&source.slot).await?));
    }

    findings.push(unrouted(&store).await?);
    Ok(Position { is_stored, has_gap })
}

/// Checks whether changes are read and deliveries are sent.
fn processes(running: &[Process]) -> Finding {
    const SUBJECT: &str = "processes";
    const REMEDY: &str =
        "start `walhook run`. Behind a pooler in transaction mode, processes may not be visible";

    let has = |role: &&str| running.iter().any(|process| process.has_role(role));
    let missing: Vec<&str> = ["capture", "deliver"]
        .into_iter()
        .filter(|role| !has(role))
        .collect();

    match (running.len(), missing.is_empty()) {
        (0, _) => Finding::warn(
            SUBJECT,
            "none is connected: no changes are read, and nothing is delivered",
            REMEDY,
        ),
        (_, false) => {
            let state = format!("none has the role {}", missing.join(" or "));
            Finding::warn(SUBJECT, state, REMEDY)
        }
        (connected, true) => Finding::ok(SUBJECT, format!("{connected} connected")),
    }
}

/// Checks for events that wait for an operator.
async fn unrouted(store: &Store) -> Result<Finding> {
    const SUBJECT: &str = "unrouted events";
    let UnroutedCount {
        events,
        oldest,
        reason,
    } = store.count_unrouted(MAX_COUNTED).await?;
    let Some((oldest, reason)) = oldest.zip(reason) else {
        return Ok(Finding::ok(SUBJECT, "none"));
    };

    let more = if events == MAX_COUNTED {
        "at least "
    } else {
        ""
    };

    Ok(Finding::warn(
        SUBJECT,
        format!(
            "{more}{events}, since {}, for example because of {reason}",
            millis(oldest)
        ),
        "see `walhook unrouted list`; when the cause is fixed, run `walhook unrouted retry`",
    ))
}

async fn partitions(store: &Store, now: Timestamp) -> Result<Finding> {
    let without = store
        .tables_without_partitions(now.to_zoned(TimeZone::UTC).date())
        .await?;
    Ok(match without.is_empty() {
        true => Finding::ok("partitions", "every day has its own"),
        false => Finding::warn(
            "partitions",
            format!(
                "rows of {} are in the default partition, because days lack their own",
                without.join(", ")
            ),
            "a running `walhook run` moves them within the hour; if they stay, its server log and /readyz have the reason",
        ),
    })
}

/// Checks whether the store can lose what it has committed.
fn synchronous_commit(store: &Identity) -> Finding {
    const SUBJECT: &str = "store's synchronous_commit";
    let remedy = format!(
        "`alter role \"{}\" in database \"{}\" set synchronous_commit = on`",
        store.role, store.database
    );

    match (store.synchronous_commit.as_str(), store.synchronous) {
        ("off", _) => Finding::warn(
            SUBJECT,
            "off: events are flushed anyway, but a crash of the store loses the last attempts and edits of webhooks",
            remedy,
        ),
        (value @ ("local" | "remote_write"), true) => Finding::warn(
            SUBJECT,
            format!(
                "{value}: a failover of the store can lose events that the primary no longer has"
            ),
            remedy,
        ),
        (value, _) => Finding::ok(SUBJECT, value),
    }
}
