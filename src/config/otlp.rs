//! The section `tracing`: the collector of spans.

use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use super::redact;
use crate::domain::headers::is_name;
use crate::domain::trace::Sampling;

/// The path of a collector's endpoint for spans.
const TRACES_PATH: &str = "/v1/traces";

section! { Tracing:
    /// A collector that accepts OTLP over HTTP. Without it nothing is traced, and deliveries carry
    /// no `traceparent`.
    #[schemars(example = &"http://127.0.0.1:4318")]
    otlp_endpoint: Option<String>,
    /// Headers for the collector: `name=value`, separated by commas, values percent-encoded.
    #[serde(serialize_with = "redact")]
    #[schemars(with = "Option<String>", example = &"authorization=Bearer%20token")]
    headers: Option<SecretString>,
    /// Share of events to trace, from 0 to 1.
    sample_ratio: f64 = 1.0,
}

/// The collector that spans are exported to.
#[derive(Clone, Debug)]
pub struct Collector {
    /// The endpoint for spans.
    pub url: Url,
    /// Names and values.
    pub headers: Vec<(String, SecretString)>,
}

impl Tracing {
    /// Validates the section. Errors quote no secret.
    pub(super) fn check(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(format!(
                "tracing.sample_ratio: {} is not from 0 to 1",
                self.sample_ratio
            ));
        }

        if self.otlp_endpoint.is_none() && self.headers.is_some() {
            return Err("tracing.headers needs tracing.otlp_endpoint".to_owned());
        }

        self.collector().map(|_| ())
    }

    /// Returns the configured collector, if any.
    pub fn collector(&self) -> Result<Option<Collector>, String> {
        let Some(endpoint) = &self.otlp_endpoint else {
            return Ok(None);
        };

        let headers = self.headers.as_ref().map_or(Ok(Vec::new()), |headers| {
            parse_headers(headers.expose_secret())
        })?;

        Ok(Some(Collector {
            url: traces_url(endpoint)?,
            headers,
        }))
    }

    /// Returns which events are traced, or `None` without a collector.
    pub fn sampling(&self) -> Option<Sampling> {
        self.otlp_endpoint
            .is_some()
            .then(|| Sampling::new(self.sample_ratio))
    }
}

fn traces_url(endpoint: &str) -> Result<Url, String> {
    let wrong = || {
        "tracing.otlp_endpoint: expected a URL such as http://127.0.0.1:4318; credentials belong in tracing.headers"
            .to_owned()
    };

    let mut url = Url::parse(endpoint).map_err(|_| wrong())?;
    let has_credentials = !url.username().is_empty() || url.password().is_some();
    if !matches!(url.scheme(), "http" | "https") || has_credentials || url.fragment().is_some() {
        return Err(wrong());
    }

    if !url.path().ends_with(TRACES_PATH) {
        let path = format!("{}{TRACES_PATH}", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }

    Ok(url)
}

/// Parses `name=value` pairs. The error does not quote them: any part may be a secret.
fn parse_headers(text: &str) -> Result<Vec<(String, SecretString)>, String> {
    let wrong = || {
        "tracing.headers: expected name=value, several joined by commas, values percent-encoded: authorization=Bearer%20…"
            .to_owned()
    };

    let pairs = text.split(',').map(|pair| {
        let (name, value) = pair.split_once('=').ok_or_else(wrong)?;
        let value = percent_decode_str(value.trim())
            .decode_utf8()
            .map_err(|_| wrong())?;
        let is_plain = value
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic());

        if !is_name(name.trim()) || !is_plain {
            return Err(wrong());
        }

        Ok((
            name.trim().to_owned(),
            SecretString::from(value.into_owned()),
        ))
    });

    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_gets_the_standard_path() {
        let url = |text: &str| traces_url(text).map(|url| url.to_string());
        assert_eq!(
            url("http://127.0.0.1:4318").unwrap(),
            "http://127.0.0.1:4318/v1/traces"
        );
        assert_eq!(
            url("https://otlp.example/api/").unwrap(),
            "https://otlp.example/api/v1/traces"
        );
        assert_eq!(
            url("https://otlp.example/v1/traces?x=1").unwrap(),
            "https://otlp.example/v1/traces?x=1"
        );

        for wrong in [
            "127.0.0.1:4318",
            "grpc://collector:4317",
            "http://user:hunter2@collector",
            "",
        ] {
            let problem = url(wrong).unwrap_err();
            assert!(
                problem.starts_with("tracing.otlp_endpoint") && !problem.contains("hunter2"),
                "{problem}"
            );
        }
    }

    #[test]
    fn malformed_headers_are_rejected_without_quoting_them() {
        let parsed = parse_headers("authorization=Basic%20aHVudGVy==, x-tenant=7").unwrap();
        let parsed: Vec<(&str, &str)> = parsed
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose_secret()))
            .collect();
        assert_eq!(
            parsed,
            [("authorization", "Basic aHVudGVy=="), ("x-tenant", "7")]
        );

        for wrong in [
            "hunter2",
            "a b=hunter2",
            "a=hunter2%0d%0ax:y",
            "=hunter2",
            "a=hunter2,",
            "a=hunter2%ff",
        ] {
            let problem = parse_headers(wrong).unwrap_err();
            assert!(
                problem.starts_with("tracing.headers") && !problem.contains("hunter2"),
                "{problem}"
            );
        }
    }
}
