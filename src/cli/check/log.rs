//! Checks of the log that a store reads: reachable, of a server that keeps what it has committed,
//! and of the installation that was read before.

use jiff::Timestamp;

use super::failed;
use crate::capture;
use crate::capture::CaptureError;
use crate::config::Config;
use crate::primary::finding::Finding;
use crate::store::migrate::{self, Identity, Incompatibility};
use crate::store::{Store, StoreError};

const SUBJECT: &str = "log";

/// Inspects the log's store.
pub(super) async fn inspect(config: &Config, findings: &mut Vec<Finding>) {
    let url = match config.capture_url() {
        Ok(url) => url,
        Err(error) => {
            findings.push(Finding::fail(SUBJECT, "not configured", error.to_string()));
            return;
        }
    };

    if let Err(error) = read(config, url, findings).await {
        let is_rejection = matches!(&error, CaptureError::Log(error) if error.is_rejection());
        findings.push(failed(SUBJECT, &error, is_rejection, url));
    }
}

async fn read(config: &Config, url: &str, findings: &mut Vec<Finding>) -> Result<(), CaptureError> {
    let log = capture::log::open(url)?;
    let before = Timestamp::now();
    let identity = log.identity().await.map_err(CaptureError::Log)?;
    let schema = migrate::schema(url).await.map_err(CaptureError::Log)?;

    findings.push(Finding::clock("log clock", identity.now, before));

    if let Some(Incompatibility { problem, fix }) = schema.unreadable() {
        findings.push(Finding::fail("log schema", problem, fix));
        return Ok(());
    }

    let end = log.log_end().await.map_err(CaptureError::Log)?;

    findings.push(match end.lineage() {
        Some(_) => Finding::ok(
            SUBJECT,
            format!(
                "database {}, store {}, {} events",
                identity.database, end.store, end.last
            ),
        ),
        None => Finding::fail(
            SUBJECT,
            "a standby, which may lack the last events",
            "give source.log_url all hosts of the log store and target_session_attrs=read-write",
        ),
    });
    findings.push(durability(config, &identity).await);

    let Ok(own_url) = config.store_url() else {
        return Ok(());
    };

    // What keeps this store from answering is a finding of its own.
    let Ok(own) = Store::open(own_url, 1) else {
        return Ok(());
    };

    if capture::log::is_same(&log, &own).await.unwrap_or(false) {
        findings.push(Finding::fail(
            "log database",
            "the store itself",
            "set store.url to a database of its own",
        ));
    }

    let stored = own.checkpoint(&config.source.slot).await.ok().flatten();
    let known = stored.and_then(|stored| stored.progress.log());

    if let Some(known) = known.filter(|known| known.store != end.store) {
        findings.push(Finding::fail(
            "log store",
            format!("another installation's: store {} was read before", known.store),
            "point source.log_url back, or run `walhook repair --force` to read this log from now on",
        ));
    }

    findings.extend(cell(config, &log, &own).await?);
    Ok(())
}

/// Checks whether the store is the cell that the settings name. None if the store does not answer.
async fn cell(config: &Config, log: &Store, own: &Store) -> Result<Option<Finding>, CaptureError> {
    const SUBJECT: &str = "cell";
    let name = config.cells.name.as_deref();

    Ok(Some(match capture::log::cell(log, own, name).await {
        Ok(None) => Finding::ok(SUBJECT, "the store reads all events of the log"),
        Ok(Some(cell)) => Finding::ok(SUBJECT, format!("{}, shards {}", cell.name, cell.shards)),
        Err(CaptureError::Cell(fault)) => Finding::fail(
            SUBJECT,
            fault.to_string(),
            "see \"Cells\" in the documentation, and `walhook cells list`",
        ),
        Err(error @ CaptureError::Log(_)) => return Err(error),
        Err(_) => return Ok(None),
    }))
}

/// Checks whether a failover can undo what the log has committed. A log on the primary's server
/// loses no more than the primary does.
async fn durability(config: &Config, log: &Identity) -> Finding {
    const SUBJECT: &str = "log failover";

    if log.synchronous {
        return Finding::ok(SUBJECT, "commits wait for a standby");
    }

    if shares_primary(config, log).await.unwrap_or(false) {
        return Finding::ok(SUBJECT, "the log fails over together with the primary");
    }

    Finding::warn(
        SUBJECT,
        "commits do not wait for a standby: if the server is lost, so are its last events, until a repair raises them again",
        "set synchronous_standby_names on the log's server, or keep the log on the primary's",
    )
}

async fn shares_primary(config: &Config, log: &Identity) -> Result<bool, StoreError> {
    let Ok(url) = config.source_url() else {
        return Ok(false);
    };

    let primary = Store::open(url, 1)?.identity().await?;
    Ok(primary.system_identifier == log.system_identifier)
}
