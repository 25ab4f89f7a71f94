//! What can be configured, with its defaults. One struct a section; `load` puts file, environment and flags together.

mod access;
mod load;
mod mail;
mod mapping;
mod otlp;
mod proxy;
mod units;

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use secrecy::SecretString;
use serde::{Deserialize, Serialize, Serializer};

pub use load::{ConfigError, Sources, load};
pub use mail::{Outgoing, SmtpServer, SmtpTls};
pub use mapping::{TableMapping, TableMappings};
pub use otlp::{Collector, Tracing};
pub use proxy::Proxy;
pub use units::{Period, Size};

use crate::domain::backoff::RetrySchedule;
use crate::domain::disablement::{Policy, Rule};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Service {
    /// The first part of the User-Agent: `<name>-Webhooks/1.0`.
    pub name: String,
}

impl Default for Service {
    fn default() -> Self {
        Service { name: "Walhook".into() }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Source {
    /// The primary. Logical replication goes over the same URL. Required.
    #[serde(serialize_with = "redact_url")]
    pub url: Option<SecretString>,
    /// By the log, or by triggers where logical replication cannot be had.
    pub capture: CaptureMode,
    /// How often the triggers' outbox is looked at while nothing comes.
    pub poll_interval: Period,
    pub slot: String,
    pub publication: String,
    /// How old values of the captured tables get into the log.
    pub replica_identity: ReplicaIdentity,
    /// Whether a new slot is carried over to standbys, where the server can (17 and later).
    pub failover: bool,
    /// Whether a transaction must be visible on the primary before its events are stored and sent.
    pub await_visibility: AwaitVisibility,
    /// Distribution statuses to recognise beside the documented eight.
    pub distribution_statuses: Vec<String>,
    /// How often a heartbeat goes through the log.
    pub heartbeat: Period,
    /// Keep the watched columns of every watched row as last seen, so that `repair` finds what a gap hides.
    pub ledger: bool,
    pub tables: TableMappings,
    /// SQL that finds a looked-up table's rows where a mapping is not enough: `$1` is the array of keys as text.
    pub lookups: std::collections::BTreeMap<String, String>,
}

impl Default for Source {
    fn default() -> Self {
        Source {
            url: None,
            capture: CaptureMode::Wal,
            poll_interval: Period(std::time::Duration::from_millis(100)),
            slot: "walhook".into(),
            publication: "walhook".into(),
            replica_identity: ReplicaIdentity::Full,
            failover: true,
            await_visibility: AwaitVisibility::Auto,
            distribution_statuses: Vec::new(),
            heartbeat: Period::secs(10),
            ledger: true,
            tables: TableMappings::default(),
            lookups: Default::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureMode {
    Wal,
    Trigger,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplicaIdentity {
    /// Every update and delete writes the whole old row to the log.
    Full,
    /// A unique index over the id and the watched columns: old values are written when one of these changes.
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AwaitVisibility {
    /// While the primary's `synchronous_standby_names` is not empty.
    Auto,
    Always,
    Never,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Store {
    /// Where Walhook keeps its own tables; the primary where nothing is set.
    #[serde(serialize_with = "redact_url")]
    pub url: Option<SecretString>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Http {
    /// API and UI.
    pub listen: SocketAddr,
    pub base_path: String,
    /// Where browsers reach this service, such as `https://hooks.example`. Cookies are sent over TLS alone where it begins so.
    pub public_url: Option<String>,
    pub max_body_bytes: Size,
    /// Connections to one listener at once. When there are more, a client that is waited for loses its connection.
    pub max_connections: usize,
    /// Requests being handled at once. Others wait for two seconds and are then answered 503.
    pub max_requests: usize,
    /// From the start of a connection to the end of its first request's head.
    pub header_timeout: Period,
    /// How long a connection is kept between two requests. More than a load balancer in front keeps it.
    pub idle_timeout: Period,
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

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Delivery {
    /// From the first byte of connecting to the last byte of the answer.
    pub timeout: Period,
    /// The waits between attempts: their number plus one is the number of attempts.
    pub retry_schedule: Vec<Period>,
    /// A random share of this is added to each wait.
    pub retry_jitter: Period,
    pub max_payload_bytes: usize,
    /// Requests under way at once, over all webhooks.
    pub concurrency: usize,
    pub per_webhook_concurrency: usize,
    /// While there are first attempts to make; without any, retries go as fast as they can.
    pub retries_per_second: u32,
    /// Deliver to plain http receivers too.
    pub allow_http: bool,
    /// Networks exempt from the refusal of private and special addresses.
    pub allow_networks: Vec<IpNet>,
    /// Networks that are always refused, whatever else allows them.
    pub deny_networks: Vec<IpNet>,
    /// Tunnels to receivers are made through it.
    #[serde(serialize_with = "redact_url")]
    pub proxy: Option<SecretString>,
    /// Certificate authorities to trust beside the system's, as PEM.
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

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Disable {
    pub policy: DisablePolicy,
    /// How many failed attempts switch a webhook off. Half of it warns the owner.
    pub threshold: u32,
    /// Under the consecutive policy, the run of failures must also have lasted this long.
    pub min_duration: Period,
}

impl Default for Disable {
    fn default() -> Self {
        Disable { policy: DisablePolicy::Consecutive, threshold: 100, min_duration: Period::secs(0) }
    }
}

impl Disable {
    pub fn policy(&self) -> Policy {
        let rule = match self.policy {
            DisablePolicy::Consecutive => Rule::Consecutive { min_duration: self.min_duration.0 },
            DisablePolicy::Cumulative => Rule::Cumulative,
        };
        Policy { rule, threshold: self.threshold }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DisablePolicy {
    /// Counts failures since the last success.
    Consecutive,
    /// Counts all failures.
    Cumulative,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    pub webhooks_per_user: u32,
    /// Per API token.
    pub requests_per_second: u32,
    pub burst: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { webhooks_per_user: 10, requests_per_second: 100, burst: 200 }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Auth {
    pub jwt: Option<Jwt>,
}

/// Tokens of the platform's own: accepted beside API tokens once configured.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    pub issuer: String,
    /// `aud` of tokens for the API.
    pub audience: String,
    /// `aud` of tokens in sign-in links; see [`Jwt::sign_in_audience`].
    #[serde(default)]
    pub sign_in_audience: Option<String>,
    #[serde(default = "default_user_claim")]
    pub user_claim: String,
    #[serde(default)]
    pub jwks_url: Option<String>,
    #[serde(default)]
    pub jwks_file: Option<PathBuf>,
    #[serde(default, serialize_with = "redact")]
    pub secret: Option<SecretString>,
}

impl Jwt {
    /// The audience of sign-in links: never the API's, so that a token has one purpose.
    pub fn sign_in_audience(&self) -> String {
        self.sign_in_audience.clone().unwrap_or_else(|| format!("{}/sign-in", self.audience))
    }
}

fn default_user_claim() -> String {
    "sub".into()
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Shutdown {
    /// How long `/readyz` says that the process ends before its listeners close: for balancers to take notice.
    pub delay: Period,
    /// How long requests under way may take to end.
    pub drain: Period,
}

impl Default for Shutdown {
    fn default() -> Self {
        Shutdown { delay: Period::secs(0), drain: Period::secs(15) }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mail {
    /// `smtp://` for plain SMTP, with `?tls=required` or `?tls=opportunistic` for STARTTLS; `smtps://` for TLS.
    #[serde(serialize_with = "redact_url")]
    pub smtp_url: Option<SecretString>,
    /// The sender, such as `Example <webhooks@example.com>`.
    pub from: Option<String>,
    /// Certificates to trust beside the system's, as PEM.
    pub extra_ca_file: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Secrets {
    /// Base64 of 32 bytes each; the first encrypts, all decrypt. Required.
    #[serde(deserialize_with = "one_or_many", serialize_with = "redact_list")]
    pub master_key: Vec<SecretString>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    pub days: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Retention { days: 30 }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    pub format: LogFormat,
    /// What is logged, as `RUST_LOG` has it, which wins where it is set.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    Text,
    /// One object a line.
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
