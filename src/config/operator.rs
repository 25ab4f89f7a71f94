//! The section `operator`: where Walhook reports its own occurrences.

use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use super::redact;

/// More than the systems of an operator. Each is polled for.
const MAX_WEBHOOKS: usize = 10;

section! { Operator:
    /// URLs that get Walhook's own occurrences: failing and disabled webhooks, deliveries that
    /// failed permanently, gaps and their repairs, unrouted events. At most ten. Private addresses
    /// and plain `http` are allowed.
    #[schemars(example = &["https://alerts.internal/walhook"])]
    webhooks: Vec<String>,
    /// Secret that signs these requests: `whsec_` and base64 (`echo whsec_$(openssl rand -base64
    /// 32)`). Required with `operator.webhooks`.
    #[serde(serialize_with = "redact")]
    #[schemars(with = "Option<String>", example = &"whsec_…")]
    secret: Option<SecretString>,
}

impl Operator {
    pub(super) fn check(&self) -> Result<(), String> {
        if self.webhooks.len() > MAX_WEBHOOKS {
            return Err(format!("operator.webhooks: at most {MAX_WEBHOOKS} URLs"));
        }

        for url in &self.webhooks {
            let is_valid = Url::parse(url)
                .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
            if !is_valid {
                return Err(
                    "operator.webhooks: expected URLs such as https://alerts.internal/walhook"
                        .to_owned(),
                );
            }
        }

        let secret = self.secret.as_ref().map(ExposeSecret::expose_secret);
        match secret {
            Some(secret) if !secret.starts_with("whsec_") => {
                Err("operator.secret: expected `whsec_` and base64: create one with `echo whsec_$(openssl rand -base64 32)`".to_owned())
            }
            None if !self.webhooks.is_empty() => {
                Err("operator.webhooks: set operator.secret, which signs the requests".to_owned())
            }
            _ => Ok(()),
        }
    }
}
