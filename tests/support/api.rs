//! A user of the management API.

use std::sync::LazyLock;
use std::time::Duration;

use reqwest::{Client, Method};
use serde_json::{Value, json};

static CLIENT: LazyLock<Client> = LazyLock::new(|| {
    // Another test of this binary may have installed it already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none());
    builder
        .timeout(Duration::from_secs(30))
        .build()
        .expect("a client without TLS settings")
});

/// Sends a GET request. `None` if there is no response.
pub async fn get(url: &str) -> Option<(u16, String)> {
    let answer = CLIENT.get(url).send().await.ok()?;
    Some((answer.status().as_u16(), answer.text().await.ok()?))
}

pub struct Api {
    pub url: String,
    pub token: String,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Answer {
        assert_eq!(self.status, status, "{self:?}");
        self
    }
}

impl Api {
    pub fn new(url: &str, token: &str) -> Api {
        Api {
            url: url.to_owned(),
            token: token.to_owned(),
        }
    }

    /// A client with the same token, for another replica.
    pub fn at(&self, url: &str) -> Api {
        Api::new(url, &self.token)
    }

    /// Sends a request. `path` is relative to the base path, such as `/webhooks`.
    pub async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Answer {
        let answer = self.try_send(method, path, headers, body).await;
        answer.unwrap_or_else(|error| panic!("{path}: {error:?}"))
    }

    /// Like [`Api::send`], for processes that may be killed.
    pub async fn try_send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> reqwest::Result<Answer> {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        let mut request = CLIENT
            .request(method, format!("{}{path}", self.url))
            .bearer_auth(&self.token);

        if let Some(body) = body {
            request = request
                .header("content-type", "application/json")
                .body(body.to_string());
        }

        for (name, value) in headers {
            request = request.header(*name, *value);
        }

        let answer = request.send().await?;
        let status = answer.status().as_u16();
        let headers = answer.headers().clone();

        Ok(Answer {
            status,
            headers,
            body: answer.text().await?,
        })
    }

    /// Sends a GET request without the token. Returns the status and the body.
    pub async fn get_without_token(&self, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
        let mut request = CLIENT.get(format!("{}{path}", self.url));

        for (name, value) in headers {
            request = request.header(*name, *value);
        }

        let answer = request.send().await.expect("a response");
        (
            answer.status().as_u16(),
            answer.text().await.expect("a body"),
        )
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, &[], Some(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send("PATCH", path, &[], Some(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], None).await
    }

    /// Creates a webhook. Returns its id and secret.
    pub async fn create_webhook(&self, url: &str, events: &[&str]) -> (String, String) {
        let body = json!({ "name": "test", "url": url, "events": events });
        let created = self.post("/webhooks", body).await.expect(201).json();
        let text = |key: &str| {
            created[key]
                .as_str()
                .unwrap_or_else(|| panic!("no {key} in {created}"))
                .to_owned()
        };

        (text("id"), text("secret"))
    }

    pub async fn webhook(&self, id: &str) -> Value {
        self.get(&format!("/webhooks/{id}"))
            .await
            .expect(200)
            .json()
    }

    pub async fn webhooks(&self) -> Vec<Value> {
        list(self.get("/webhooks?limit=100").await)
    }

    /// Returns the newest hundred entries of the delivery log.
    pub async fn logs(&self, id: &str) -> Vec<Value> {
        list(self.get(&format!("/webhooks/{id}/logs?limit=100")).await)
    }

    /// Waits until the delivery log's entries are as wanted: they are written shortly after the
    /// attempt.
    pub async fn wait_for_logs(
        &self,
        id: &str,
        what: &str,
        wanted: impl Fn(&[Value]) -> bool,
    ) -> Vec<Value> {
        super::eventually(what, || async {
            Some(self.logs(id).await).filter(|logs| wanted(logs))
        })
        .await
    }
}

#[track_caller]
fn list(answer: Answer) -> Vec<Value> {
    let answer = answer.expect(200).json();
    answer["data"]
        .as_array()
        .unwrap_or_else(|| panic!("no data in {answer}"))
        .clone()
}
