//! What a failover to a standby can undo, and what is waited for to prevent it.

use postgres_types::Type;
use tokio_postgres::Client;

use super::super::Report;
use crate::capture::CaptureError;
use crate::config::{AwaitVisibility, Source};
use crate::primary::catalog::{self, FAILOVER_VERSION};

const STANDBYS: &str = include_str!("../../../../sql/primary/standbys.sql");

pub(crate) async fn check(report: &mut Report, source: &Source, client: &Client) -> Result<(), CaptureError> {
    let synchronous = catalog::is_synchronous(client).await?;
    let line = "source.await_visibility";
    match (source.await_visibility, synchronous) {
        (AwaitVisibility::Never, true) => report.warn(
            line,
            "never, and commits wait for a standby: events of transactions that no session sees yet are sent, and a failover undoes them",
            "set it to auto",
        ),
        (AwaitVisibility::Never, false) => report.ok(line, "never"),
        (AwaitVisibility::Always, _) => report.ok(line, "always: events wait until their transactions are visible"),
        (AwaitVisibility::Auto, true) => {
            report.ok(line, "auto: commits wait for a standby, so events wait until their transactions are visible");
        }
        (AwaitVisibility::Auto, false) => report.ok(line, "auto: synchronous_standby_names is empty, nothing is waited for"),
    }
    let row = client.query_typed_one(STANDBYS, &[(&source.slot, Type::TEXT)]).await?;
    let (version, failover): (i32, bool) = (row.get("version"), row.get("failover"));
    if version < FAILOVER_VERSION || !failover {
        return Ok(());
    }
    let line = "synchronized_standby_slots";
    let (setting, physical): (String, Vec<String>) = (row.get("setting"), row.get("physical"));
    if !setting.is_empty() {
        report.ok(line, setting);
        return Ok(());
    }
    let slots = if physical.is_empty() { "SLOT OF THE STANDBY".to_owned() } else { physical.join(", ") };
    report.warn(
        line,
        format!("empty, and slot {} is carried over to standbys: events are sent of commits that a failover undoes", source.slot),
        format!(
            "`alter system set synchronized_standby_slots = '{slots}'` with the physical slots of the standbys that may be promoted, \
             then `select pg_reload_conf()`; without standbys, set source.failover to false before the slot is created"
        ),
    );
    Ok(())
}
