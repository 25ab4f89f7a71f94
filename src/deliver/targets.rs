//! Where deliveries go: read from the store right before they go there, with the secrets decrypted.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lru::LruCache;
use secrecy::ExposeSecret;
use uuid::Uuid;

use super::client::Endpoint;
use super::guard::Guard;
use super::request::Signer;
use crate::domain::webhook::SealedTarget;
use crate::telemetry::recurring;
use crate::vault::Vault;

/// How long what was read may be used again: an edit, a toggle or a new secret holds for what begins later than this.
const REUSE: Duration = Duration::from_millis(5);
/// Destinations that are kept, for when their webhooks are found as they were.
const KEPT: NonZeroUsize = NonZeroUsize::new(10_000).expect("not zero");

/// A webhook, ready to be delivered to.
pub struct Destination {
    pub endpoint: Endpoint,
    pub active: bool,
    pub signer: Signer,
}

#[derive(Clone)]
pub enum Lookup {
    Found(Arc<Destination>),
    /// Deleted.
    Gone,
    /// There, but its secret does not decrypt: our own fault and not the receiver's.
    Unreadable,
}

pub struct Targets {
    vault: Arc<Vault>,
    guard: Guard,
    recent: HashMap<Uuid, (Instant, Lookup)>,
    /// With what they were made from.
    kept: LruCache<Uuid, (SealedTarget, Arc<Destination>)>,
}

impl Targets {
    pub fn new(vault: Arc<Vault>, guard: Guard) -> Targets {
        Targets { vault, guard, recent: HashMap::new(), kept: LruCache::new(KEPT) }
    }

    /// What was read of a webhook, if that was just now.
    pub fn recent(&self, webhook: Uuid) -> Option<Lookup> {
        let (read_at, lookup) = self.recent.get(&webhook)?;
        (read_at.elapsed() <= REUSE).then(|| lookup.clone())
    }

    /// Takes in the answer to a question for `webhooks` that was put at `asked_at`.
    pub fn learn(&mut self, asked_at: Instant, webhooks: &[Uuid], found: Vec<SealedTarget>) {
        self.recent.retain(|_, (read_at, _)| read_at.elapsed() <= REUSE);
        for webhook in webhooks {
            self.recent.insert(*webhook, (asked_at, Lookup::Gone));
        }
        for target in found {
            let webhook = target.webhook;
            let lookup = self.open(target);
            self.recent.insert(webhook, (asked_at, lookup));
        }
    }

    /// Takes in targets that were read at `read_at` for another purpose.
    pub fn told(&mut self, read_at: Instant, targets: Vec<SealedTarget>) {
        if read_at.elapsed() > REUSE {
            return;
        }
        for target in targets {
            let webhook = target.webhook;
            if self.recent.get(&webhook).is_none_or(|(known_at, _)| *known_at < read_at) {
                let lookup = self.open(target);
                self.recent.insert(webhook, (read_at, lookup));
            }
        }
    }

    /// What `learn` took in last, for those who waited for it, however long the answer took.
    pub fn learned(&self, webhook: Uuid) -> Lookup {
        self.recent.get(&webhook).map_or(Lookup::Gone, |(_, lookup)| lookup.clone())
    }

    fn open(&mut self, target: SealedTarget) -> Lookup {
        let webhook = target.webhook;
        if let Some((_, destination)) = self.kept.get(&webhook).filter(|(known, _)| *known == target) {
            return Lookup::Found(Arc::clone(destination));
        }
        let secret = match self.vault.open_text(webhook, &target.secret_key_id, &target.secret) {
            Ok(secret) => secret,
            Err(error) => {
                recurring!(error, %webhook, %error, "webhooks' secrets cannot be read: their deliveries wait");
                return Lookup::Unreadable;
            }
        };
        let destination = Arc::new(Destination {
            endpoint: Endpoint::new(&target.url, &self.guard),
            active: target.active,
            signer: Signer::new(secret.expose_secret()),
        });
        self.kept.put(webhook, (target, Arc::clone(&destination)));
        Lookup::Found(destination)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vault;

    fn sealed(vault: &Vault, webhook: Uuid, secret: &str) -> SealedTarget {
        let sealed = vault.seal(webhook, secret.as_bytes());
        SealedTarget {
            webhook,
            url: "https://example.com".into(),
            active: true,
            secret: sealed.bytes,
            secret_key_id: sealed.key_id,
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
        let Lookup::Found(destination) = lookup else { panic!("not found") };
        destination.signer.sign(Uuid::nil(), jiff::Timestamp::UNIX_EPOCH, b"body").body
    }

    #[test]
    fn a_new_secret_replaces_the_one_kept() {
        let (vault, webhook) = (vault(), Uuid::from_u128(1));
        let mut targets = Targets::new(vault.clone(), guard());
        let mut signed = |secret: &str| {
            targets.learn(Instant::now(), &[webhook], vec![sealed(&vault, webhook, secret)]);
            signature(targets.learned(webhook))
        };
        let first = signed("whsec_a");
        assert_eq!(first, signed("whsec_a"));
        assert_ne!(first, signed("whsec_b"));
    }

    #[test]
    fn what_is_not_found_is_gone_and_what_does_not_decrypt_is_neither() {
        let (mine, other) = (vault(), vault());
        let (gone, unreadable) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut targets = Targets::new(mine, guard());
        targets.learn(Instant::now(), &[gone, unreadable], vec![sealed(&other, unreadable, "s")]);
        assert!(matches!(targets.learned(gone), Lookup::Gone));
        assert!(matches!(targets.learned(unreadable), Lookup::Unreadable));
    }

    #[test]
    fn what_was_read_for_another_purpose_counts_unless_something_newer_is_known() {
        let (vault, webhook) = (vault(), Uuid::from_u128(1));
        let mut targets = Targets::new(vault.clone(), guard());
        let (before, now) = (Instant::now(), Instant::now() + Duration::from_millis(1));
        targets.told(before, vec![sealed(&vault, webhook, "whsec_a")]);
        assert!(matches!(targets.learned(webhook), Lookup::Found(_)));
        targets.learn(now, &[webhook], Vec::new());
        targets.told(before, vec![sealed(&vault, webhook, "whsec_a")]);
        assert!(matches!(targets.learned(webhook), Lookup::Gone));
        let long_ago = Instant::now().checked_sub(REUSE * 2).unwrap();
        targets.told(long_ago, vec![sealed(&vault, Uuid::from_u128(2), "whsec_a")]);
        assert!(targets.recent(Uuid::from_u128(2)).is_none());
    }

    #[test]
    fn what_was_read_too_long_ago_is_read_again() {
        let webhook = Uuid::from_u128(1);
        let mut targets = Targets::new(vault(), guard());
        let long_ago = Instant::now().checked_sub(REUSE * 2).unwrap();
        targets.learn(long_ago, &[webhook], Vec::new());
        assert!(targets.recent(webhook).is_none());
        assert!(matches!(targets.learned(webhook), Lookup::Gone));
    }
}
