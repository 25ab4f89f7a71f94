//! `walhook init --explain`: which events the newest rows would have raised.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::app::open_store;
use crate::cli::CommandResult;
use crate::cli::check::unnamed;
use crate::config::Config;
use crate::domain::change::Tuple;
use crate::domain::event::{EventKind, UserId};
use crate::domain::subject::{Subject, is_wanted};
use crate::domain::table::Table;
use crate::enqueue::derive_supposed;
use crate::events::{Derived, NoEvent, supposed_change};
use crate::lookup::{LookupError, Lookups};
use crate::postgres;
use crate::primary::finding::{Condition, Fix, FixKind, Severity};
use crate::primary::inspect::inspect_primary;
use crate::propose::possible;
use crate::store::Store;
use crate::store::webhooks::{self, Webhook};

/// The most webhooks of a user that are read.
const MAX_WEBHOOKS: usize = 100;

pub async fn execute(rows: u32, config: Config) -> CommandResult {
    let url = config.source_url()?;
    let store_url = config.store_url()?;
    let mut lookups = Lookups::for_repair(url, &config.source, Store::open(store_url, 1)?);
    let mut receivers = Receivers::new(open_store(store_url, 1).await);

    let (_, findings) = inspect_primary(&config.source, url).await?;
    let is_grant = |fix: &&Fix| fix.kind == FixKind::Grants;
    let obstacles = findings.iter().filter(|finding| {
        let is_of_mapping = matches!(
            finding.condition,
            Condition::Table(_) | Condition::Columns(_)
        );
        let is_denied = finding.fixes.iter().any(|fix| is_grant(&fix));
        finding.severity == Severity::Fail && (is_of_mapping || is_denied)
    });

    let mut is_sound = true;
    for finding in obstacles {
        println!("{finding}");
        for Fix { by, sql, .. } in finding.fixes.iter().filter(is_grant) {
            println!("      {sql} -- with the rights of {by}");
        }
        is_sound = false;
    }

    let captured = Table::ALL
        .iter()
        .copied()
        .filter(|table| table.is_captured());
    for table in captured {
        if !config.source.follows(table) {
            println!("\n{}: absent", table.name());
            continue;
        }

        match explain(table, rows, &config, &mut lookups, &mut receivers).await {
            Ok(()) => {}
            Err(error) => {
                let remedy = match error.downcast_ref() {
                    Some(LookupError::Query { source, .. }) if postgres::is_denied(source) => {
                        "; `walhook setup --print` prints the grants that are missing"
                    }
                    _ => "",
                };
                println!("\n{}: {error}{remedy}", table.name());
                is_sound = false;
            }
        }
    }

    if let Some(error) = receivers.unreachable {
        println!("\nwebhooks are not shown: {error}");
    }

    Ok(is_sound)
}

/// Prints what the newest rows of a table would have raised.
async fn explain(
    table: Table,
    count: u32,
    config: &Config,
    lookups: &mut Lookups,
    receivers: &mut Receivers,
) -> anyhow::Result<()> {
    let rows = lookups.newest(table, count).await?;
    let (schema, name) = config.source.tables.qualified_name(table);
    let found = match rows.len() {
        0 => "no rows".to_owned(),
        count => format!("the newest {count} rows, as if each had just reached its state"),
    };
    println!("\n{}: {schema}.{name}, {found}", table.name());

    let changes: Vec<_> = rows.iter().map(|row| supposed_change(table, row)).collect();
    let derived = derive_supposed(lookups, &changes).await?;

    for (index, row) in rows.iter().enumerate() {
        let id = row.text(crate::domain::table::ID).unwrap_or("null");
        let results = derived.iter().filter(|result| result.0 == index);
        let mut is_silent = true;

        for (_, kind, result) in results {
            let line = match result {
                Ok(event) => describe(*kind, event, receivers).await,
                Err(NoEvent::NotApplicable) => continue,
                Err(reason) => format!("no {kind}: {}", describe_reason(reason)),
            };
            println!("  {} {id}: {line}", table.name());
            is_silent = false;
        }

        if is_silent {
            println!("  {} {id}: no event ({})", table.name(), state(table, row));
        }
    }

    print_unnamed(table, &rows, config);
    Ok(())
}

async fn describe(kind: EventKind, event: &Derived, receivers: &mut Receivers) -> String {
    let webhooks = receivers.of(kind, event).await;
    let assumed = match kind {
        EventKind::ReleaseReviewStatusChanged => " (previous_status is assumed)",
        _ => "",
    };

    format!(
        "{kind} for user {}{assumed}, {webhooks}\n    {}",
        event.owner, event.data
    )
}

fn describe_reason(reason: &NoEvent) -> String {
    match reason {
        NoEvent::Ignored { reason, value } => {
            format!("{reason} ({value}): map the value in source.tables")
        }
        NoEvent::Unrouted(reason) => format!("it has no owner ({reason})"),
        NoEvent::LookupFailed(detail) | NoEvent::Malformed(detail) => detail.clone(),
        NoEvent::Lookup(key) => format!("{key} cannot be read"),
        NoEvent::NotApplicable => "not applicable".to_owned(),
    }
}

/// Describes the watched columns of a row.
fn state(table: Table, row: &Tuple) -> String {
    let columns = table.watched().iter().filter_map(|name| {
        let value = row.text(table.column(name)?).unwrap_or("null");
        Some(format!("{name} {value}"))
    });
    columns.collect::<Vec<_>>().join(", ")
}

/// Prints the values of statuses that have no meaning.
fn print_unnamed(table: Table, rows: &[Tuple], config: &Config) {
    for name in table.columns() {
        let values = rows.iter().filter_map(|row| row.text(table.column(name)?));
        let unnamed: Vec<&str> = unnamed(&config.source, table, name, values)
            .into_iter()
            .collect();

        if !unnamed.is_empty() {
            println!(
                "  {name} has values that no map names: {}; the documented ones are {} (source.tables.{}.values.{name})",
                unnamed.join(", "),
                possible(table, name).join(", "),
                table.name()
            );
        }
    }
}

/// The webhooks that would get events.
struct Receivers {
    /// None if it cannot be read.
    store: Option<Store>,
    webhooks: BTreeMap<UserId, Vec<Webhook>>,
    /// Why the store cannot be read.
    unreachable: Option<String>,
}

impl Receivers {
    fn new(opened: anyhow::Result<Store>) -> Receivers {
        let unreachable = opened.as_ref().err().map(ToString::to_string);
        Receivers {
            store: opened.ok(),
            webhooks: BTreeMap::new(),
            unreachable,
        }
    }

    /// Describes the webhooks that would get an event.
    async fn of(&mut self, kind: EventKind, event: &Derived) -> String {
        let Some(store) = self.store.as_ref().filter(|_| self.unreachable.is_none()) else {
            return "webhooks unknown".to_owned();
        };

        if !self.webhooks.contains_key(&event.owner) {
            match webhooks::list(store, &event.owner, Uuid::nil(), MAX_WEBHOOKS).await {
                Ok(found) => {
                    self.webhooks.insert(event.owner.clone(), found);
                }
                Err(error) => {
                    self.unreachable = Some(error.to_string());
                    return "webhooks unknown".to_owned();
                }
            }
        }

        let subject = Subject::new(kind, event.label, &event.data);
        let wants = |webhook: &&Webhook| {
            let settings = &webhook.settings;
            let kinds: Vec<EventKind> = settings
                .events
                .iter()
                .filter_map(|name| name.parse().ok())
                .collect();
            settings.active && is_wanted(&kinds, settings.filter.as_ref(), &subject)
        };
        let found = self.webhooks[&event.owner].iter().filter(wants);
        let names: Vec<String> = found
            .map(|webhook| format!("{} ({})", webhook.settings.name, webhook.id))
            .collect();

        match names.is_empty() {
            true => "no webhook would get it".to_owned(),
            false => format!("to {}", names.join(", ")),
        }
    }
}
