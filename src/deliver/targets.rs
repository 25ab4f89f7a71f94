//! The destinations of deliveries: webhooks as they were read from the store shortly before, with
//! their secrets and custom headers decrypted.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use uuid::Uuid;

use super::client::Endpoint;
use super::guard::Guard;
use super::request::Signer;
use crate::domain::webhook::SealedTarget;
use crate::telemetry::recurring;
use crate::vault::Vault;

/// How long after it was read a webhook may be used. An edit, a toggle or a new secret applies to
/// all attempts that start this long after it, or later.
const MAX_AGE: Duration = Duration::from_millis(5);
/// The most prepared destinations in memory. Webhooks that are read again unchanged use them.
const MAX_PREPARED: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// A webhook, prepared for attempts.
pub struct Destination {
    pub endpoint: Endpoint,
    pub active: bool,
    pub activation: i32,
    pub signer: Signer,
}

#[derive(Clone)]
pub enum Lookup {
    Found(Arc<Destination>),
    Deleted,
    /// The secret or the custom headers cannot be decrypted. The receiver is not to blame.
    Unreadable,
}

/// Caches destinations for a few milliseconds.
pub struct Targets {
    vault: Arc<Vault>,
    guard: Guard,
    /// With a time before the read.
    recent: HashMap<Uuid, (Instant, Lookup)>,
    /// With the webhooks from which they were prepared.
    prepared: LruCache<Uuid, (SealedTarget, Arc<Destination>)>,
}

impl Targets {
    pub fn new(vault: Arc<Vault>, guard: Guard) -> Targets {
        Targets {
            vault,
            guard,
            recent: HashMap::new(),
            prepared: LruCache::new(MAX_PREPARED),
        }
    }

    /// Returns a webhook as it was read, if that was recently enough.
    pub fn recent(&self, webhook: Uuid, now: Instant) -> Option<Lookup> {
        let (read_at, lookup) = self.recent.get(&webhook)?;
        is_recent(*read_at, now).then(|| lookup.clone())
    }

    /// Stores the result of a query for `webhooks` that was sent at `queried_at`. Those not found
    /// are deleted.
    pub fn store_read(
        &mut self,
        queried_at: Instant,
        webhooks: &[Uuid],
        found: Vec<SealedTarget>,
        now: Instant,
    ) {
        self.recent
            .retain(|_, (read_at, _)| is_recent(*read_at, now));

        for webhook in webhooks {
            self.recent.insert(*webhook, (queried_at, Lookup::Deleted));
        }

        for target in found {
            let webhook = target.webhook;
            let lookup = self.prepare(target);
            self.recent.insert(webhook, (queried_at, lookup));
        }
    }

    /// Stores webhooks that came with the hand-off, read at `read_at` or later. Newer reads take
    /// precedence.
    pub fn store_handed_off(&mut self, read_at: Instant, targets: Vec<SealedTarget>, now: Instant) {
        if !is_recent(read_at, now) {
            return;
        }

        for target in targets {
            let webhook = target.webhook;
            if self
                .recent
                .get(&webhook)
                .is_none_or(|(known_at, _)| *known_at < read_at)
            {
                let lookup = self.prepare(target);
                self.recent.insert(webhook, (read_at, lookup));
            }
        }
    }

    /// Returns the result of the last query, however long it took: for deliveries that waited for
    /// it.
    pub fn last_read(&self, webhook: Uuid) -> Lookup {
        self.recent
            .get(&webhook)
            .map_or(Lookup::Deleted, |(_, lookup)| lookup.clone())
    }

    fn prepare(&mut self, target: SealedTarget) -> Lookup {
        let webhook = target.webhook;
        if let Some((_, destination)) = self
            .prepared
            .get(&webhook)
            .filter(|(known, _)| *known == target)
        {
            return Lookup::Found(Arc::clone(destination));
        }

        let signer = Signer::open(&self.vault, &target);
        let headers = || self.vault.open_headers(webhook, target.headers.as_ref());

        let (signer, headers) = match signer.and_then(|signer| Ok((signer, headers()?))) {
            Ok(opened) => opened,
            Err(error) => {
                recurring!(error, %webhook, %error, "secrets of webhooks cannot be decrypted: their deliveries wait");
                return Lookup::Unreadable;
            }
        };

        let destination = Arc::new(Destination {
            endpoint: Endpoint::new(&target.url, &self.guard).with_headers(&headers),
            active: target.active,
            activation: target.activation,
            signer,
        });

        self.prepared
            .put(webhook, (target, Arc::clone(&destination)));
        Lookup::Found(destination)
    }
}

fn is_recent(read_at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(read_at) <= MAX_AGE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vault::{self, Sealed, SealedOwner};

    fn sealed(vault: &Vault, webhook: Uuid, secret: &str) -> SealedTarget {
        let sealed = vault.seal(webhook, secret.as_bytes());
        SealedTarget {
            webhook,
            url: "https://example.com".into(),
            active: true,
            secret: sealed.bytes,
            secret_key_id: sealed.key_id,
            headers: None,
            keys: Default::default(),
            activation: 0,
        }
    }

    fn vault() -> Arc<Vault> {
        use base64::Engine;
        let key = base64::engine::general_purpose::STANDARD.encode(vault::random_bytes::<32>());
        Arc::new(Vault::new(&[key.into()]).unwrap())
    }

    fn guard() -> Guard {
        Guard::new(false, Vec::new())
    }

    fn signature(lookup: Lookup) -> [u8; 32] {
        let Lookup::Found(destination) = lookup else {
            panic!("not found")
        };

        destination
            .signer
            .sign(Uuid::nil(), jiff::Timestamp::UNIX_EPOCH, b"body")
            .body
    }

    #[test]
    fn a_new_secret_replaces_the_prepared_one() {
        let vault = vault();
        let webhook = Uuid::from_u128(1);
        let mut targets = Targets::new(vault.clone(), guard());
        let mut signed = |secret: &str| {
            let now = Instant::now();
            targets.store_read(now, &[webhook], vec![sealed(&vault, webhook, secret)], now);
            signature(targets.last_read(webhook))
        };

        let first = signed("whsec_a");
        assert_eq!(first, signed("whsec_a"));
        assert_ne!(first, signed("whsec_b"));
    }

    #[test]
    fn webhooks_not_found_are_deleted_and_those_with_unreadable_secrets_are_not() {
        let mine = vault();
        let other = vault();
        let deleted = Uuid::from_u128(1);
        let unreadable = Uuid::from_u128(2);
        let mut targets = Targets::new(mine, guard());
        let now = Instant::now();

        targets.store_read(
            now,
            &[deleted, unreadable],
            vec![sealed(&other, unreadable, "s")],
            now,
        );

        assert!(matches!(targets.last_read(deleted), Lookup::Deleted));
        assert!(matches!(targets.last_read(unreadable), Lookup::Unreadable));
    }

    #[test]
    fn headers_that_cannot_be_decrypted_make_deliveries_wait() {
        let vault = vault();
        let webhook = Uuid::from_u128(1);
        let mut targets = Targets::new(vault.clone(), guard());
        let good = vault.seal(SealedOwner::headers(webhook), br#"[["X-Key","v"]]"#);

        // The webhook's secret in the place of its headers.
        let bad = vault.seal(webhook, br#"[["X-Key","v"]]"#);
        let mut lookup = |headers: Sealed| {
            let target = SealedTarget {
                headers: Some(headers),
                ..sealed(&vault, webhook, "whsec_a")
            };

            let now = Instant::now();
            targets.store_read(now, &[webhook], vec![target], now);

            targets.last_read(webhook)
        };

        assert!(matches!(lookup(good), Lookup::Found(_)));
        assert!(matches!(lookup(bad), Lookup::Unreadable));
    }

    #[test]
    fn webhooks_from_the_hand_off_are_used_unless_a_newer_read_is_known() {
        let vault = vault();
        let webhook = Uuid::from_u128(1);
        let mut targets = Targets::new(vault.clone(), guard());
        let before = Instant::now();
        let now = Instant::now() + Duration::from_millis(1);

        targets.store_handed_off(before, vec![sealed(&vault, webhook, "whsec_a")], now);
        assert!(matches!(targets.last_read(webhook), Lookup::Found(_)));
        targets.store_read(now, &[webhook], Vec::new(), now);
        targets.store_handed_off(before, vec![sealed(&vault, webhook, "whsec_a")], now);
        assert!(matches!(targets.last_read(webhook), Lookup::Deleted));

        let later = now + MAX_AGE * 2;
        targets.store_handed_off(
            now,
            vec![sealed(&vault, Uuid::from_u128(2), "whsec_a")],
            later,
        );
        assert!(targets.recent(Uuid::from_u128(2), later).is_none());
    }

    #[test]
    fn old_reads_are_not_used_again() {
        let webhook = Uuid::from_u128(1);
        let mut targets = Targets::new(vault(), guard());
        let now = Instant::now();

        targets.store_read(now, &[webhook], Vec::new(), now);
        assert!(targets.recent(webhook, now + MAX_AGE).is_some());
        assert!(targets.recent(webhook, now + MAX_AGE * 2).is_none());
        assert!(matches!(targets.last_read(webhook), Lookup::Deleted));
    }
}
