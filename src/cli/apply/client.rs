//! The operations of the API that `walhook apply` uses.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http_body_util::{BodyExt, Limited};
use reqwest::header::{CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Body, Method, StatusCode};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;
use url::Url;
use uuid::Uuid;

use super::super::listen::feed::{API_EXPECTED, ProblemDetails, client, printable, root_cause};

/// The API looks up the URL's host, which takes up to ten seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// A page has a hundred webhooks, each of which has some kilobytes.
const MAX_BYTES: usize = 32 << 20;

/// The webhooks of one user.
pub struct WebhookClient {
    client: reqwest::Client,
    api: Url,
}

/// An entry of the list of webhooks.
#[derive(Deserialize)]
pub struct Listed {
    pub id: Uuid,
    pub name: String,
}

/// A webhook and its version.
pub struct Version {
    pub webhook: Value,
    pub etag: String,
}

/// What a change requires of the webhook.
pub enum Condition<'a> {
    IsAbsent,
    HasVersion(&'a str),
}

impl WebhookClient {
    pub fn new(
        api: &Url,
        token: &SecretString,
        ca: Option<&Path>,
    ) -> anyhow::Result<WebhookClient> {
        Ok(WebhookClient {
            client: client(token, ca)?,
            api: api.clone(),
        })
    }

    /// Returns all webhooks in the order of their creation.
    pub async fn list(&self) -> anyhow::Result<Vec<Listed>> {
        #[derive(Deserialize)]
        struct Page {
            data: Vec<Listed>,
            next_cursor: Option<String>,
        }

        let mut listed = Vec::new();
        let mut cursor: Option<String> = None;

        loop {
            let mut url = self.url(&[])?;
            url.query_pairs_mut().append_pair("limit", "100");

            if let Some(cursor) = &cursor {
                url.query_pairs_mut().append_pair("cursor", cursor);
            }

            let (_, page) = self.send(Method::GET, url, None, None).await?;
            let page: Page = serde_json::from_value(page).with_context(|| {
                format!("{} is not a list of webhooks: {API_EXPECTED}", self.api)
            })?;
            listed.extend(page.data);
            cursor = page.next_cursor;

            if cursor.is_none() {
                return Ok(listed);
            }
        }
    }

    pub async fn read(&self, id: Uuid) -> anyhow::Result<Version> {
        let url = self.url(&[&id.to_string()])?;
        let (etag, webhook) = self.send(Method::GET, url, None, None).await?;
        let etag = etag.context("the API sent a webhook without an ETag")?;
        Ok(Version { webhook, etag })
    }

    /// Creates or replaces the webhook with this name, and returns it.
    pub async fn put(
        &self,
        name: &str,
        body: &Value,
        condition: Condition<'_>,
    ) -> anyhow::Result<Value> {
        let url = self.url(&["by-name", name])?;
        let sent = self.send(Method::PUT, url, Some(condition), Some(body));
        Ok(sent.await?.1)
    }

    pub async fn delete(&self, id: Uuid, etag: &str) -> anyhow::Result<()> {
        let url = self.url(&[&id.to_string()])?;
        let condition = Some(Condition::HasVersion(etag));
        self.send(Method::DELETE, url, condition, None)
            .await
            .map(drop)
    }

    fn url(&self, path: &[&str]) -> anyhow::Result<Url> {
        let mut url = self.api.clone();
        url.path_segments_mut()
            .map_err(|()| anyhow!("--api: {} cannot have a path", self.api))?
            .pop_if_empty()
            .push("webhooks")
            .extend(path);
        Ok(url)
    }

    /// Returns the version and the body of a successful response.
    async fn send(
        &self,
        method: Method,
        url: Url,
        condition: Option<Condition<'_>>,
        body: Option<&Value>,
    ) -> anyhow::Result<(Option<String>, Value)> {
        let mut request = self.client.request(method, url).timeout(REQUEST_TIMEOUT);
        let header = |condition| -> (HeaderName, &str) {
            match condition {
                Condition::IsAbsent => (IF_NONE_MATCH, "*"),
                Condition::HasVersion(etag) => (IF_MATCH, etag),
            }
        };

        if let Some((name, value)) = condition.map(header) {
            request = request.header(name, value.to_owned());
        }

        if let Some(body) = body {
            request = request
                .header(CONTENT_TYPE, "application/json")
                .body(body.to_string());
        }

        let response = request
            .send()
            .await
            .map_err(|error| anyhow!("{} cannot be reached: {}", self.api, root_cause(&error)))?;
        let status = response.status();
        let etag = response.headers().get(ETAG).cloned();
        let etag = etag.and_then(|etag| etag.to_str().ok().map(str::to_owned));
        let body = Limited::new(Body::from(response), MAX_BYTES)
            .collect()
            .await
            .map_err(|error| anyhow!("{} did not finish its response: {error}", self.api))?
            .to_bytes();

        if status.is_success() {
            return Ok((etag, serde_json::from_slice(&body).unwrap_or_default()));
        }

        let problem: ProblemDetails = serde_json::from_slice(&body).unwrap_or_default();
        let text = printable(&problem.text());

        match status {
            StatusCode::PRECONDITION_FAILED => {
                bail!("it was changed in the meantime: run the command again")
            }
            StatusCode::UNAUTHORIZED => bail!(
                "the API rejected the token{text}: set --token or WALHOOK_TOKEN to a valid one"
            ),
            _ if text.is_empty() => bail!("{} answered {status}: {API_EXPECTED}", self.api),
            _ => bail!("the API answered {}{text}", status.as_u16()),
        }
    }
}
