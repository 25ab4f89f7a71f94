//! Prepares store and primary: looks at everything first, then changes what is missing in the order that is safe.

use tokio_postgres::Client;

use super::plan::{self, Plan, PublicationPlan};
use super::{identity, slot, triggers, uninstall};
use crate::capture::CaptureError;
use crate::config::{CaptureMode, Source};
use crate::domain::position::Checkpoint;
use crate::health::Health;
use crate::postgres;
use crate::postgres::quote_identifier;
use crate::store::capture::FoundIdentity;
use crate::store::{Store, migrate};

pub use super::print::statements;
pub use super::triggers::trigger_statements;

pub(super) const PUBLICATION_CREATE: &str = include_str!("../../sql/primary/publication_create.sql");
const PUBLICATION_ADD: &str = include_str!("../../sql/primary/publication_add.sql");
const PUBLICATION_OPTIONS: &str = include_str!("../../sql/primary/publication_options.sql");

/// Brings store and primary to where streaming can begin, and says what it did. Run again, it finds nothing to do.
pub async fn setup(source: &Source, url: &str, store_url: &str) -> Result<Vec<String>, CaptureError> {
    match source.capture {
        CaptureMode::Wal => log(source, url, store_url).await,
        CaptureMode::Trigger => triggers::setup(source, url, store_url).await,
    }
}

async fn log(source: &Source, url: &str, store_url: &str) -> Result<Vec<String>, CaptureError> {
    let client = postgres::connect(url).await?;
    let plan = plan::make(&client, source).await?;
    // Reaches the server as a walsender before anything is changed: what refuses that refuses now.
    let mut walsender = match plan.slot_exists {
        true => None,
        false => Some(slot::connect(source, url, plan.failover).await?),
    };
    let migrated = migrate::migrate(store_url).await?;
    let store = Store::open(store_url, 2)?;
    let checkpoint = store.checkpoint(&source.slot).await?;
    let reads_outbox = checkpoint.as_ref().is_some_and(|stored| stored.progress.is_outbox());
    let left = if reads_outbox { None } else { uninstall::drop_triggers(&client, source, &store).await? };
    if !reads_outbox && triggers::catalog::state(&client).await?.installed {
        return Err(CaptureError::SwitchToTriggers);
    }
    if let (false, Some(checkpoint), false) = (plan.slot_exists, &checkpoint, reads_outbox) {
        return Err(missing_slot(source, &store, checkpoint).await);
    }
    let mut done: Vec<String> = left.into_iter().collect();
    if plan.slot_exists && checkpoint.is_none() {
        done.push(slot::drop_unfinished(&client, source, &store).await?);
        walsender = Some(slot::connect(source, url, plan.failover).await?);
    }
    if !migrated.is_empty() {
        done.push(format!("store: schema brought up to date ({})", migrated.join(", ")));
    }
    prepare(&client, source, &store, &plan, &mut done).await?;
    if let Some(walsender) = walsender {
        let lease = if reads_outbox { Some(triggers::stop_reading(source, &store).await?) } else { None };
        let created = slot::create(walsender, &client, source, url, &store).await?;
        if let Some(lease) = lease {
            lease.release().await;
        }
        done.push(created.to_string());
    }
    Ok(done)
}

/// What the slot needs before it is made: identities, then the publication.
pub(crate) async fn prepare(
    client: &Client,
    source: &Source,
    store: &Store,
    plan: &Plan,
    done: &mut Vec<String>,
) -> Result<(), CaptureError> {
    done.extend(plan.notes.iter().cloned());
    identity::bound(client).await?;
    set_identities(client, source, store, plan, done).await?;
    publish(client, source, plan, done).await
}

async fn missing_slot(source: &Source, store: &Store, checkpoint: &Checkpoint) -> CaptureError {
    let Some(at) = checkpoint.progress.resume() else { return CaptureError::OutboxIsRead };
    let gap = crate::capture::error::Gap::SlotMissing { slot: source.slot.clone(), at };
    crate::repair::gaps::record(source, store, &Health::default(), gap, Some(at)).await
}

/// Before the tables are published: a published table without identity makes the application's own updates fail.
async fn set_identities(
    client: &Client,
    source: &Source,
    store: &Store,
    plan: &Plan,
    done: &mut Vec<String>,
) -> Result<(), CaptureError> {
    for relation in &plan.identities {
        let found = FoundIdentity {
            table_oid: relation.oid,
            table_name: relation.qualified(),
            identity: relation.identity.clone(),
            index: relation.identity_index.clone().filter(|_| relation.identity == "i"),
        };
        store.remember_identity(&found).await?;
        let (goal, reason) = identity::goal(source, relation);
        identity::set(client, source, relation, goal).await?;
        let what = match goal {
            identity::Goal::Full => "full".to_owned(),
            identity::Goal::Index => format!("index over {}", identity::wanted(source, relation.table).join(", ")),
        };
        let reason = reason.map(|reason| format!(", since {reason}")).unwrap_or_default();
        done.push(format!("table {}: replica identity {what}{reason}", relation.qualified()));
    }
    Ok(())
}

async fn publish(client: &Client, source: &Source, plan: &Plan, done: &mut Vec<String>) -> Result<(), CaptureError> {
    let name = quote_identifier(&source.publication);
    let run = async |template: &str, tables: &[String]| {
        let statement = template.replace("{publication}", &name).replace("{tables}", &tables.join(", "));
        match client.batch_execute(&statement).await {
            Ok(()) => Ok(()),
            Err(error) => Err(identity::busy(client, error, tables).await),
        }
    };
    match &plan.publication {
        PublicationPlan::Create { tables } => {
            run(PUBLICATION_CREATE, tables).await?;
            done.push(format!("publication {}: created for {} tables", source.publication, tables.len()));
        }
        PublicationPlan::Alter { add, set_options } => {
            if *set_options {
                run(PUBLICATION_OPTIONS, &[]).await?;
                done.push(format!("publication {}: options set", source.publication));
            }
            if !add.is_empty() {
                run(PUBLICATION_ADD, add).await?;
                done.push(format!("publication {}: added {}", source.publication, add.join(", ")));
            }
        }
    }
    Ok(())
}
