//! The section `auth`: the platform's own tokens.

use std::path::PathBuf;

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use super::{redact, redact_url};

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    /// Accept the platform's own tokens in addition to API tokens.
    pub jwt: Option<Jwt>,
}

/// Verification of the platform's own tokens (JWT). Set exactly one of `jwks_url`, `jwks_file` and
/// `secret`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    /// Required value of `iss`.
    #[schemars(example = &"https://platform.example")]
    pub issuer: String,
    /// Required value of `aud` in API tokens.
    #[schemars(example = &"walhook")]
    pub audience: String,
    /// Required value of `aud` in sign-in links (`/ui/login?jwt=…`). Must differ from `audience`.
    /// Default: `<audience>/sign-in`.
    #[serde(default)]
    #[schemars(example = &"walhook/sign-in")]
    pub sign_in_audience: Option<String>,
    /// Claim that holds the user's id, a string or a whole number.
    #[serde(default = "default_user_claim")]
    pub user_claim: String,
    /// URL of the platform's public keys (RS256, ES256, EdDSA and their stronger variants). Fetched
    /// directly: the environment's proxy variables are ignored. Keys that cannot be fetched again
    /// are used for one hour.
    #[serde(default, serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"https://platform.example/.well-known/jwks.json")]
    pub jwks_url: Option<SecretString>,
    /// File with the platform's public keys. It is read again within ten seconds of a change.
    #[serde(default)]
    #[schemars(example = &"/etc/walhook/jwks.json")]
    pub jwks_file: Option<PathBuf>,
    /// Shared secret of at least 32 bytes (HS256).
    #[serde(default, serialize_with = "redact")]
    #[schemars(with = "Option<String>", example = &"…")]
    pub secret: Option<SecretString>,
}

impl Jwt {
    /// The audience of sign-in links: never the API's, so that a token has one purpose.
    pub fn sign_in_audience(&self) -> String {
        self.sign_in_audience
            .clone()
            .unwrap_or_else(|| format!("{}/sign-in", self.audience))
    }
}

fn default_user_claim() -> String {
    "sub".into()
}
