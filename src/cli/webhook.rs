//! `walhook webhook`: webhooks of all users, for operators.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{CommandResult, plain_text, print_text, table};
use crate::api::WebhookBody;
use crate::app::{open_manage, open_store};
use crate::config::Config;
use crate::domain::delivery::Outcome;
use crate::domain::event::UserId;
use crate::domain::time::millis;
use crate::domain::webhook::WebhookState;
use crate::manage::operators::{self, OwnedWebhook};
use crate::manage::{Fault, JobDraft, JobScope, Policy};

#[derive(Debug, Args)]
pub struct Arguments {
    /// Only webhooks of this user
    #[arg(long, global = true, value_name = "ID", value_parser = plain_text)]
    user: Option<String>,
    #[command(subcommand)]
    action: WebhookAction,
}

#[derive(Debug, Subcommand)]
enum WebhookAction {
    /// List webhooks, oldest first
    List {
        /// Only webhooks in this state: active, failing (active, and the last attempt has failed),
        /// disabled (automatically or by an operator), inactive (switched off by the owner)
        #[arg(long)]
        state: Option<WebhookState>,
        /// Only webhooks after this one in the list
        #[arg(long, value_name = "WEBHOOK")]
        after: Option<Uuid>,
        /// At most so many
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1_000))]
        limit: u16,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Show a webhook as its owner sees it, as JSON
    Show { webhook: Uuid },
    /// Stop deliveries to a webhook. Its owner sees the reason, and can enable it again
    Disable {
        webhook: Uuid,
        /// What the owner should know or do
        #[arg(long, value_parser = plain_text)]
        reason: String,
    },
    /// Enable a webhook again, and reset its failures
    Enable { webhook: Uuid },
    /// Redeliver everything that failed permanently or was cancelled, and deliver what the webhook
    /// missed while it was inactive. Runs in the background
    Recover {
        webhook: Uuid,
        /// From this time on, such as 2026-03-01T09:00:00Z. Default: from the first of the failures
        /// because of which the webhook was disabled automatically
        #[arg(long, value_name = "TIME")]
        since: Option<Timestamp>,
        /// Before this time. Default: now
        #[arg(long, value_name = "TIME")]
        until: Option<Timestamp>,
        /// Only deliveries whose last attempt had this outcome
        #[arg(long)]
        outcome: Option<Outcome>,
        /// Only count the deliveries
        #[arg(long)]
        dry_run: bool,
    },
}

pub async fn execute(arguments: Arguments, config: Config) -> CommandResult {
    let Arguments { user, action } = arguments;
    let user = user.map(|user| UserId(user.into()));
    let policy = config.disable.policy();
    let store = open_store(config.store_url()?, 1).await?;
    let id = match action {
        WebhookAction::List {
            state,
            after,
            limit,
            json,
        } => {
            let limit = usize::from(limit);
            let after = after.unwrap_or_default();
            let found = operators::list(&store, user.as_ref(), state, after, limit).await?;

            if found.len() == limit {
                let last = found.last().map_or(after, |last| last.webhook.id);
                eprintln!("there may be more: see --after {last}");
            }

            let json_line = |found| format!("{}\n", json_object(found, &policy));
            return print_text(&match json {
                true => found.into_iter().map(json_line).collect(),
                false => table(COLUMNS, found.iter().map(cells)),
            });
        }
        WebhookAction::Show { webhook }
        | WebhookAction::Disable { webhook, .. }
        | WebhookAction::Enable { webhook }
        | WebhookAction::Recover { webhook, .. } => webhook,
    };

    let found = operators::find(&store, id).await?;
    if user.is_some_and(|user| user != found.user) {
        return Err(Fault::NoSuchWebhook.into());
    }

    match action {
        WebhookAction::List { .. } => {}
        WebhookAction::Show { .. } => {
            return print_text(&format!("{:#}\n", json_object(found, &policy)));
        }
        WebhookAction::Disable { reason, .. } => {
            let disabled = operators::disable(&store, &found, &reason).await?;
            anyhow::ensure!(disabled, "webhook {id} is inactive already");
            println!("disabled");
        }
        WebhookAction::Enable { .. } => {
            anyhow::ensure!(
                !found.webhook.settings.active,
                "webhook {id} is active already"
            );
            let manage = open_manage(&config).await?;
            let edit = json!({"active": true}).to_string();
            manage
                .update_webhook(&found.operator(), id, edit.as_bytes(), &|_| true)
                .await?;
            println!("enabled; `walhook webhook recover {id}` delivers what it missed");
        }
        WebhookAction::Recover {
            since,
            until,
            outcome,
            dry_run,
            ..
        } => {
            let manage = open_manage(&config).await?;
            let preset = manage.recovery_preset(&found.user, id).await?;
            let Some(since) = since.or(preset) else {
                anyhow::bail!(
                    "webhook {id} was not disabled in the retention period: --since says from when on to recover"
                );
            };

            let draft = JobDraft::recovery(since, until, outcome)?;
            if dry_run {
                let scope = manage.preview_job(&found.user, id, &draft).await?;
                println!("{} would be recovered", scope_text(&scope));
            } else {
                let started = manage.start_job(&found.operator(), id, &draft).await?;
                println!("job {}: {}", started.id, scope_text(&started.scope));
            }
        }
    }

    Ok(true)
}

fn scope_text(scope: &JobScope) -> String {
    let JobScope {
        count,
        is_exact,
        since,
        until,
    } = scope;
    let least = if *is_exact { "" } else { "at least " };
    format!(
        "{least}{count} deliveries from {} to {}",
        millis(*since),
        millis(*until)
    )
}

/// `FAILURES` are those since the last success.
const COLUMNS: [&str; 8] = [
    "ID",
    "USER",
    "STATE",
    "FAILURES",
    "LAST CALLED",
    "NAME",
    "URL",
    "REASON",
];

/// The URL is without its query, which may contain secrets.
fn cells(found: &OwnedWebhook) -> [String; 8] {
    let webhook = &found.webhook;
    let url = webhook.settings.url.split('?').next().unwrap_or_default();
    let triggered = webhook.last_triggered_at;

    [
        webhook.id.to_string(),
        found.user.to_string(),
        found.state().as_str().to_owned(),
        webhook.consecutive_failures.to_string(),
        triggered.map_or_else(|| "-".to_owned(), millis),
        webhook.settings.name.clone(),
        url.to_owned(),
        webhook.disabled_reason.clone().unwrap_or_default(),
    ]
}

/// The webhook as the API shows it, with its owner and state.
fn json_object(found: OwnedWebhook, policy: &Policy) -> Value {
    let mut object = json!({"user": found.user.to_string(), "state": found.state()});
    let shown = serde_json::to_value(WebhookBody::new(found.webhook, policy));

    if let (Some(object), Ok(Value::Object(shown))) = (object.as_object_mut(), shown) {
        object.extend(shown);
    }

    object
}
