//! Settings and their defaults, one struct per section. `load` merges file, environment and flags.
//!
//! The doc comments are the reference: `docs/configuration.md` and `deploy/walhook.toml` are generated from them.

mod access;
mod auth;
mod load;
mod mail;
mod mapping;
mod otlp;
mod proxy;
mod source;
mod units;

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};

pub use auth::{Auth, Jwt};
pub use load::{ConfigError, Sources, load};
pub use mail::{Outgoing, SmtpServer, SmtpTls};
pub use mapping::{TableMapping, TableMappings};
pub use otlp::{Collector, Tracing};
pub use proxy::Proxy;
pub use source::{AwaitVisibility, CaptureMode, ReplicaIdentity, Source};
pub use units::{Period, Size};

use crate::domain::backoff::RetrySchedule;
use crate::domain::disablement::{CountedFailures, Policy};

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub service: Service,
    pub source: Source,
    pub store: Store,
    pub http: Http,
    pub delivery: Delivery,
    pub disable: Disable,
    pub limits: Limits,
    pub auth: Auth,
    pub shutdown: Shutdown,
    pub mail: Mail,
    pub secrets: Secrets,
    pub retention: Retention,
    pub log: Log,
    pub tracing: Tracing,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// The service's name: deliveries carry the User-Agent `<name>-Webhooks/1.0`.
    pub name: String,
}

impl Default for Service {
    fn default() -> Self {
        Service { name: "Walhook".into() }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// URL of the database for Walhook's own tables (schema `walhook`). Default: `source.url`. A separate database is recommended, because
    /// the slot decodes everything that is written to its own database.
    #[serde(serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"postgres://walhook@db.internal/walhook?sslmode=verify-full")]
    pub url: Option<SecretString>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// Address of the API and the web UI.
    pub listen: SocketAddr,
    /// Path below which the API is served. The web UI is at `/ui`.
    pub base_path: String,
    /// URL under which browsers reach the web UI. If it is https, cookies are marked Secure.
    #[schemars(example = &"https://webhooks.platform.example")]
    pub public_url: Option<String>,
    /// Larger request bodies are rejected with 413.
    pub max_body_bytes: Size,
    /// Connections per listener. When there are more, the client that has kept the server waiting longest loses its connection.
    pub max_connections: usize,
    /// Requests in flight. Further requests wait up to two seconds and are then answered with 503.
    pub max_requests: usize,
    /// Deadline for the head of a connection's first request.
    pub header_timeout: Period,
    /// How long an idle connection is kept. Set it longer than the load balancer in front keeps idle connections.
    pub idle_timeout: Period,
    /// Address of `/metrics`, `/healthz` and `/readyz`.
    pub metrics_listen: SocketAddr,
    /// Origins whose pages may call the API from a browser, such as `https://app.example`.
    pub cors_origins: Vec<String>,
}

impl Default for Http {
    fn default() -> Self {
        Http {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            base_path: "/api/public".into(),
            public_url: None,
            max_body_bytes: Size(64 << 10),
            max_connections: 1_024,
            max_requests: 256,
            header_timeout: Period::secs(10),
            idle_timeout: Period::secs(75),
            metrics_listen: SocketAddr::from(([127, 0, 0, 1], 9464)),
            cors_origins: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Delivery {
    /// Deadline for one attempt, from resolving the name to the last byte of the response.
    pub timeout: Period,
    /// Waits between attempts. The number of attempts is the length of this list plus one.
    pub retry_schedule: Vec<Period>,
    /// A random duration up to this is added to each wait.
    pub retry_jitter: Period,
    /// Larger bodies are never sent: the delivery fails permanently as `payload_too_large`.
    pub max_payload_bytes: usize,
    /// Requests in flight over all webhooks.
    pub concurrency: usize,
    /// Requests in flight per webhook.
    pub per_webhook_concurrency: usize,
    /// Retries per second while first attempts are waiting. Without waiting first attempts, retries are not limited.
    pub retries_per_second: u32,
    /// Allow receivers with plain `http` URLs.
    pub allow_http: bool,
    /// Networks that receivers may be in although their addresses are private or special, such as `10.1.0.0/16`.
    #[schemars(with = "Vec<String>")]
    pub allow_networks: Vec<IpNet>,
    /// Networks that are always refused, even if they are public or allowed, such as your own public addresses.
    #[schemars(with = "Vec<String>")]
    pub deny_networks: Vec<IpNet>,
    /// HTTP proxy through which receivers are reached, by `CONNECT` tunnels to addresses that Walhook has resolved and checked.
    #[serde(serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"http://user:password@proxy.internal:3128")]
    pub proxy: Option<SecretString>,
    /// PEM file of certificate authorities to trust in addition to the system's.
    #[schemars(example = &"/etc/walhook/ca.pem")]
    pub extra_ca_file: Option<PathBuf>,
}

impl Default for Delivery {
    fn default() -> Self {
        const MINUTE: u64 = 60;
        let waits =
            [30, MINUTE, 2 * MINUTE, 4 * MINUTE, 8 * MINUTE, 16 * MINUTE, 32 * MINUTE, 64 * MINUTE, 128 * MINUTE];
        Delivery {
            timeout: Period::secs(10),
            retry_schedule: waits.map(Period::secs).to_vec(),
            retry_jitter: Period::secs(30),
            max_payload_bytes: 65_536,
            concurrency: 256,
            per_webhook_concurrency: 64,
            retries_per_second: 1_000,
            allow_http: false,
            allow_networks: Vec::new(),
            deny_networks: Vec::new(),
            proxy: None,
            extra_ca_file: None,
        }
    }
}

impl Delivery {
    pub fn schedule(&self) -> RetrySchedule {
        RetrySchedule::new(self.retry_schedule.iter().map(|wait| wait.0).collect(), self.retry_jitter.0)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Disable {
    /// Which failed attempts count towards the threshold.
    pub policy: DisablePolicy,
    /// Number of failed attempts after which a webhook is disabled. Its owner is warned at half of it.
    pub threshold: u32,
    /// Consecutive policy: the failures must also have lasted this long. With `5m`, a receiver that restarts under load is not
    /// disabled.
    pub min_duration: Period,
}

impl Default for Disable {
    fn default() -> Self {
        Disable { policy: DisablePolicy::Consecutive, threshold: 100, min_duration: Period::secs(0) }
    }
}

impl Disable {
    pub fn policy(&self) -> Policy {
        let counted = match self.policy {
            DisablePolicy::Consecutive => CountedFailures::Consecutive { min_duration: self.min_duration.0 },
            DisablePolicy::Cumulative => CountedFailures::Cumulative,
        };
        Policy { counted, threshold: self.threshold }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DisablePolicy {
    /// Failures since the last success.
    Consecutive,
    /// All failures since the webhook was last enabled.
    Cumulative,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Webhooks that one user may have.
    pub webhooks_per_user: u32,
    /// API requests per second and API token (per user with the platform's own tokens).
    pub requests_per_second: u32,
    /// API requests that may exceed the rate at once.
    pub burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { webhooks_per_user: 10, requests_per_second: 100, burst: 200 }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long the listeners stay open while `/readyz` already answers 503, so that load balancers notice.
    pub delay: Period,
    /// How long requests in flight may take to finish.
    pub drain: Period,
}

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown { delay: Period::secs(0), drain: Period::secs(15) }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Mail {
    /// Mail server for notices to owners: `smtps://user:password@host`, `smtp://host?tls=required` (STARTTLS), or `smtp://host` (plain).
    /// Without it, notices are logged and kept.
    #[serde(serialize_with = "redact_url")]
    #[schemars(with = "Option<String>", example = &"smtps://user:password@mail.example:465")]
    pub smtp_url: Option<SecretString>,
    /// Sender address.
    #[schemars(example = &"Walhook <webhooks@platform.example>")]
    pub from: Option<String>,
    /// PEM file of certificate authorities to trust in addition to the system's.
    #[schemars(example = &"/etc/walhook/mail-ca.pem")]
    pub extra_ca_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Secrets {
    /// Base64 of 32 bytes (`openssl rand -base64 32`), or a list of such keys for rotation: the first encrypts, all decrypt. Required.
    #[serde(deserialize_with = "one_or_many", serialize_with = "redact_list")]
    #[schemars(with = "Vec<String>")]
    pub master_key: Vec<SecretString>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Days after which events and attempts are dropped, one daily partition at a time.
    pub days: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { days: 30 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Format of the server log.
    pub format: LogFormat,
    /// What is logged, in the syntax of `RUST_LOG`, which takes precedence.
    pub filter: String,
}

impl Default for Log {
    fn default() -> Self {
        // These two log every fault that they return too, once a connection: saying it once is ours.
        Log {
            format: LogFormat::Text,
            filter: "walhook=info,pg_walstream=off,deadpool=off,hickory_net=off,hickory_resolver=off,warn".into(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line of text per message.
    Text,
    /// One JSON object per line.
    Json,
}

const REDACTED: &str = "[redacted]";

fn redact<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    secret.as_ref().map(|_| REDACTED).serialize(serializer)
}

fn redact_list<S: Serializer>(secrets: &[SecretString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(secrets.iter().map(|_| REDACTED))
}

/// Shows where a URL points and hides who asks.
fn redact_url<S: Serializer>(secret: &Option<SecretString>, serializer: S) -> Result<S::Ok, S::Error> {
    use secrecy::ExposeSecret;
    let shown = secret.as_ref().map(|secret| without_password(secret.expose_secret()));
    shown.serialize(serializer)
}

/// The URL with its password, user-info and any `password` parameter taken out; what is no URL is hidden whole.
pub fn without_password(url: &str) -> String {
    let Ok(mut url) = url::Url::parse(url) else { return REDACTED.into() };
    // Without `//`, or with an `@` that is not encoded, a part of the password may be anywhere.
    if !url.has_authority() || url[url::Position::BeforePath..].contains('@') {
        return REDACTED.into();
    }
    if url.password().is_some() && url.set_password(Some("redacted")).is_err() {
        return REDACTED.into();
    }
    let secret_parameter = |name: &str| matches!(name, "password" | "sslpassword");
    if url.query_pairs().any(|(name, _)| secret_parameter(&name)) {
        let kept: Vec<(String, String)> =
            url.query_pairs().into_owned().filter(|(name, _)| !secret_parameter(name)).collect();
        url.query_pairs_mut().clear().extend_pairs(kept);
    }
    url.into()
}

fn one_or_many<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<SecretString>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(SecretString),
        Many(Vec<SecretString>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(secret) => vec![secret],
        OneOrMany::Many(secrets) => secrets,
    })
}
