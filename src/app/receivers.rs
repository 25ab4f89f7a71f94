//! Access to receivers for the API and the web UI, by the same guard, renderer and client that
//! deliveries use.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use secrecy::ExposeSecret;
use tokio::runtime::Handle;
use tracing::Instrument;
use url::Url;
use uuid::Uuid;

use crate::deliver::guard::{self, Guard};
use crate::deliver::request::{self, Notification, Signer};
use crate::deliver::resolver::{Resolver, ResolverFiles};
use crate::deliver::{Sender, Settings};
use crate::domain::delivery::{Attempt, Attempted, Delivery, Signatures};
use crate::domain::event::EventKind;
use crate::domain::headers::MASK;
use crate::domain::webhook::Target;
use crate::manage::{self, LogDetail, RenderedRequest, SigningSecret, UncallableHost};
use crate::record;
use crate::store::{Store, StoreError};
use crate::telemetry::traces::Tracer;
use crate::vault::Vault;

/// DNS lookups at a time. Separate from the budget of deliveries, so that saving many webhooks
/// delays no delivery.
const LOOKUPS: usize = 16;
/// The resolver ends a lookup within half of this.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks receivers' URLs, and sends and shows requests, for the use cases of `manage`.
pub struct Receivers {
    guard: Guard,
    user_agent: String,
    store: Store,
    vault: Arc<Vault>,
    sender: Sender,
    tracer: Tracer,
    /// The runtime of deliveries.
    runtime: Handle,
}

impl Receivers {
    /// Called on the runtime of deliveries.
    pub fn new(
        settings: &Settings,
        store: Store,
        vault: Arc<Vault>,
        sender: Sender,
        tracer: Tracer,
    ) -> Receivers {
        let resolver = Resolver::new(ResolverFiles::default(), LOOKUPS, LOOKUP_TIMEOUT);
        let guard = settings.guard.clone().with_lookup(resolver.into_lookup());

        Receivers {
            guard,
            user_agent: settings.user_agent.clone(),
            store,
            vault,
            sender,
            tracer,
            runtime: Handle::current(),
        }
    }
}

impl manage::Receivers for Receivers {
    fn check_url(&self, url: &str) -> Result<Url, String> {
        check_url(&self.guard, url)
    }

    fn look_up<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<(), UncallableHost>> {
        look_up(&self.guard, url).boxed()
    }

    fn render(&self, logged: &LogDetail) -> Option<RenderedRequest> {
        logged.url.as_ref()?;
        let event = logged.event_data.as_ref()?;
        let entry = &logged.entry;

        let notification = Notification {
            delivery: entry.delivery,
            webhook: logged.webhook,
            event: entry.event,
            kind: entry.event_kind.parse::<EventKind>().ok()?.as_str(),
            occurred_at: event.occurred_at,
            data: &event.data,
            attempt: entry.attempt.try_into().ok()?,
            sequence: entry.sequence,
            test: entry.test,
        };

        let digest =
            |bytes: &Option<Vec<u8>>| Some(bytes.as_deref()?.try_into().unwrap_or_default());
        let signatures = Signatures {
            body: digest(&logged.signature)?,
            standard: digest(&logged.standard_signature)?,
            more: logged.more_signatures.clone().unwrap_or_default(),
        };

        let request = request::replay(
            &notification,
            entry.started_at,
            signatures,
            &self.user_agent,
        );

        let headers = request.headers().map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.shown.to_owned(), value)
        });
        let custom = logged
            .custom_headers
            .iter()
            .map(|name| (name.clone(), MASK.to_owned()));
        Some(RenderedRequest {
            headers: headers.chain(custom).collect(),
            body: String::from_utf8_lossy(&request.body).into_owned(),
        })
    }

    fn signed_with<'a>(
        &'a self,
        logged: &'a LogDetail,
        request: &'a RenderedRequest,
    ) -> BoxFuture<'a, Result<Option<SigningSecret>, StoreError>> {
        let verify = async move {
            let Some(target) = self.store.targets(&[logged.webhook]).await?.pop() else {
                return Ok(None);
            };

            let previous = target.keys.previous.as_ref().map(|keys| &keys.secret);
            let secrets = [
                (
                    SigningSecret::Current,
                    Some((&target.secret_key_id, &target.secret)),
                ),
                (
                    SigningSecret::Previous,
                    previous.map(|sealed| (&sealed.key_id, &sealed.bytes)),
                ),
            ];
            let is_by = |key_id: &str, sealed: &[u8]| {
                let Ok(secret) = self.vault.open_text(logged.webhook, key_id, sealed) else {
                    return false;
                };
                let signatures = Signer::new(secret.expose_secret()).sign(
                    logged.entry.delivery,
                    logged.entry.started_at,
                    request.body.as_bytes(),
                );
                logged.signature.as_deref() == Some(&signatures.body)
            };

            Ok(secrets
                .into_iter()
                .find(|(_, sealed)| sealed.is_some_and(|(key_id, bytes)| is_by(key_id, bytes)))
                .map(|(secret, _)| secret))
        };

        verify.boxed()
    }

    fn send_test(&self, delivery: Delivery) -> BoxFuture<'_, anyhow::Result<(Uuid, Attempt)>> {
        let store = self.store.clone();
        let vault = self.vault.clone();
        let sender = self.sender.clone();
        let tracer = self.tracer.clone();

        // A connection is served by the runtime that opened it, and deliveries use those of the
        // store and to receivers too.
        let test = async move {
            let found = store.targets(&[delivery.webhook]).await?.pop();
            let found = found.context("the webhook was deleted meanwhile")?;
            let signer = Signer::open(&vault, &found)?;
            let headers = vault.open_headers(found.webhook, found.headers.as_ref())?;
            let notification = Notification {
                test: true,
                ..(&delivery).into()
            };

            let attempt = sender
                .attempt_signed(&found.url, &headers, &signer, &notification)
                .await?;
            let attempted = Attempted { delivery, attempt };
            let log = record::record_test(&store, &tracer, &attempted).await?;

            Ok((log, attempted.attempt))
        };

        let test = self.runtime.spawn(test.in_current_span());
        async move { test.await? }.boxed()
    }

    fn send_unsaved_test(
        &self,
        target: Target,
        delivery: Delivery,
    ) -> BoxFuture<'_, anyhow::Result<Attempt>> {
        let sender = self.sender.clone();

        let test = async move {
            let notification = Notification {
                test: true,
                ..(&delivery).into()
            };
            Ok(sender.attempt(&target, &notification).await?)
        };

        let test = self.runtime.spawn(test.in_current_span());
        async move { test.await? }.boxed()
    }
}

/// Parses and checks a receiver's URL without a DNS lookup.
pub fn check_url(guard: &Guard, url: &str) -> Result<Url, String> {
    let url = guard
        .check_url(url)
        .map_err(|problem| problem.to_string())?;
    guard
        .check_literal(&url)
        .map_err(|problem| problem.to_string())?;

    Ok(url)
}

/// Resolves the URL's host and checks the addresses, as for each connection.
pub async fn look_up(guard: &Guard, url: &str) -> Result<(), UncallableHost> {
    let url = guard
        .check_url(url)
        .map_err(|problem| UncallableHost::Blocked(problem.to_string()))?;
    guard
        .check_reachable(&url)
        .await
        .map_err(|problem| match problem {
            guard::Unreachable::Blocked(_) | guard::Unreachable::BlockedName => {
                UncallableHost::Blocked(problem.to_string())
            }
            // Users must not learn the state of Walhook's nameservers.
            guard::Unreachable::Fault(_) | guard::Unreachable::Descriptors(_) => {
                UncallableHost::Unresolved(
                    "the host's name could not be looked up at the moment".to_owned(),
                )
            }
            problem => UncallableHost::Unresolved(problem.to_string()),
        })
}
