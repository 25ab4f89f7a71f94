//! `walhook apply`: makes the webhooks of a user as a file describes them.

mod client;
mod file;
mod plan;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use secrecy::SecretString;
use serde_json::{Value, json};
use url::Url;

use self::client::{Condition, WebhookClient};
use self::file::Wanted;
use self::plan::{Change, Plan};
use super::forward::ca_file;
use super::listen::feed::base_url;
use super::{CommandResult, write_output};

/// There are changes: the exit code 2 of `--detailed-exitcode`, as of `terraform plan`.
#[derive(Debug, thiserror::Error)]
#[error("there are changes to apply")]
pub struct ChangesExist;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// YAML or JSON file of webhooks
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Base URL of Walhook's API, such as `https://webhooks.example/api/public`
    #[arg(long, value_name = "URL", value_parser = base_url)]
    api: Url,
    /// API token of the user whose webhooks are changed. On the command line, other users of this
    /// machine can see it
    #[arg(
        long,
        env = "WALHOOK_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN"
    )]
    token: SecretString,
    /// Delete webhooks that are not in the file
    #[arg(long)]
    prune: bool,
    /// Only show what would be changed
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run: exit with 2 if there are changes
    #[arg(long, requires = "dry_run")]
    detailed_exitcode: bool,
    /// Send the values of custom headers again: they cannot be compared
    #[arg(long)]
    renew_headers: bool,
    /// Append the secret of each new webhook to this file, one JSON object per line. Without it,
    /// they are not shown
    #[arg(long, value_name = "FILE")]
    secrets: Option<PathBuf>,
    /// PEM file of certificate authorities to trust in addition to the system's
    #[arg(long, value_name = "FILE", value_parser = ca_file)]
    ca_file: Option<PathBuf>,
}

pub async fn execute(arguments: Arguments) -> CommandResult {
    let variable = |name: &str| std::env::var(name).ok();
    let wanted = file::read(&arguments.file, &variable)?;
    let client = WebhookClient::new(
        &arguments.api,
        &arguments.token,
        arguments.ca_file.as_deref(),
    )?;

    let plan = make_plan(&client, &wanted, &arguments).await?;
    write_output(&plan.to_string())?;

    if arguments.dry_run {
        anyhow::ensure!(
            plan.changes.is_empty() || !arguments.detailed_exitcode,
            ChangesExist
        );
        return Ok(true);
    }

    // Before the first change: a secret that cannot be written would be lost.
    let mut secrets = arguments.secrets.as_deref().map(open_secrets).transpose()?;

    for change in &plan.changes {
        let name = change.name();
        make(&client, change, secrets.as_mut())
            .await
            .with_context(|| format!("webhook {name:?}"))?;
        write_output(&format!("{name}: {}\n", change.done()))?;
    }

    Ok(true)
}

/// Compares the file with the user's webhooks. Replacements come first, then deletions, then
/// creations, which may need a place that a deletion frees.
async fn make_plan<'a>(
    client: &WebhookClient,
    wanted: &'a [Wanted],
    arguments: &Arguments,
) -> anyhow::Result<Plan<'a>> {
    let listed = client.list().await?;
    plan::check_names(wanted, &listed)?;

    let mut plan = Plan::default();
    let mut created = Vec::new();

    for webhook in wanted {
        let present = listed.iter().find(|listed| listed.name == webhook.name);
        let present = match present {
            Some(listed) => Some(client.read(listed.id).await?),
            None => None,
        };

        match plan::change(webhook, present, arguments.renew_headers)? {
            Some(change @ Change::Create { .. }) => created.push(change),
            Some(change) => plan.changes.push(change),
            None => plan.unchanged += 1,
        }
    }

    for other in plan::others(wanted, &listed) {
        if !arguments.prune {
            plan.unmanaged += 1;
            continue;
        }

        plan.changes.push(Change::Delete {
            id: other.id,
            name: other.name.clone(),
            etag: client.read(other.id).await?.etag,
        });
    }

    plan.changes.extend(created);
    Ok(plan)
}

async fn make(
    client: &WebhookClient,
    change: &Change<'_>,
    secrets: Option<&mut File>,
) -> anyhow::Result<()> {
    let answer = match change {
        Change::Create { wanted, .. } => {
            let put = client.put(&wanted.name, &wanted.body, Condition::IsAbsent);
            let created = put.await?;
            keep_secret(&created, secrets)?;
            created
        }
        Change::Replace { wanted, etag, .. } => {
            let condition = Condition::HasVersion(etag);
            client.put(&wanted.name, &wanted.body, condition).await?
        }
        Change::Delete { id, etag, .. } => {
            client.delete(*id, etag).await?;
            Value::Null
        }
    };

    for warning in answer["warnings"].as_array().into_iter().flatten() {
        let text = |key: &str| warning[key].as_str().unwrap_or_default().to_owned();
        eprintln!("warning: {}: {}", text("pointer"), text("detail"));
    }

    Ok(())
}

/// Writes the secret of a new webhook, or says how to get one.
fn keep_secret(created: &Value, secrets: Option<&mut File>) -> anyhow::Result<()> {
    let (id, name, secret) = (&created["id"], &created["name"], &created["secret"]);
    let Some(file) = secrets else {
        eprintln!("The secret of {name} is not shown. Regenerate it to get one, or use --secrets.");
        return Ok(());
    };

    writeln!(
        file,
        "{}",
        json!({ "id": id, "name": name, "secret": secret })
    )
    .context("the secret cannot be written: regenerate it")
}

/// Opens a file that nobody else can read.
fn open_secrets(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    let opened = options.append(true).create(true).mode(0o600).open(path);
    opened.with_context(|| format!("cannot open {}", path.display()))
}
