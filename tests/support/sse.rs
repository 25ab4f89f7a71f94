//! A client of Server-Sent Events.

use std::time::Duration;

use reqwest::header::{ACCEPT, HeaderMap};
use reqwest::{Client, Response};
use serde_json::Value;

use super::{Api, DEADLINE};

/// A block of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: Option<String>,
    pub comment: Option<String>,
    pub retry: Option<String>,
}

impl Block {
    fn parse(text: &str) -> Block {
        let mut block = Block::default();

        for line in text.lines() {
            let (field, value) = line
                .split_once(':')
                .unwrap_or_else(|| panic!("no field in {line:?}"));
            let value = Some(value.strip_prefix(' ').unwrap_or(value).to_owned());

            match field {
                "id" => block.id = value,
                "event" => block.event = value,
                "data" => block.data = value,
                "" => block.comment = value,
                "retry" => block.retry = value,
                _ => panic!("an unknown field in {line:?}"),
            }

            // Some clients remember the id at once, and so skip an event that was cut off after it.
            assert!(
                field == "id" || block.id.is_none(),
                "{line:?} follows the id"
            );
        }

        block
    }

    /// Returns the event's object.
    pub fn json(&self) -> Value {
        let data = self
            .data
            .as_deref()
            .unwrap_or_else(|| panic!("no data in {self:?}"));
        serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// An open stream of the feed.
pub struct Stream {
    response: Response,
    rest: String,
    /// The last id: where to resume.
    pub last_id: Option<String>,
}

impl Stream {
    /// Opens a stream and reads its first block.
    pub async fn open(api: &Api, query: &str, last_id: Option<&str>) -> Stream {
        let response = Stream::request(api, query, last_id)
            .await
            .expect("a response");
        let status = response.status();

        assert_eq!(status, 200, "{}", response.text().await.unwrap_or_default());
        assert_eq!(
            header(response.headers(), "content-type"),
            Some("text/event-stream")
        );

        let mut stream = Stream {
            response,
            rest: String::new(),
            last_id: None,
        };

        let first = stream.next().await.expect("a first block");
        assert!(
            first.id.is_some() && first.retry.is_some() && first.data.is_none(),
            "{first:?}"
        );

        stream
    }

    /// Opens a stream of a process that may be killed. None if it does not answer, or answers with
    /// an error.
    pub async fn try_open(api: &Api, query: &str, last_id: Option<&str>) -> Option<Stream> {
        let response = Stream::request(api, query, last_id).await.ok()?;
        let opened = Stream {
            response,
            rest: String::new(),
            last_id: last_id.map(str::to_owned),
        };

        (opened.response.status() == 200).then_some(opened)
    }

    /// Sends the request of a stream.
    pub async fn request(
        api: &Api,
        query: &str,
        last_id: Option<&str>,
    ) -> reqwest::Result<Response> {
        Stream::request_at(api, &format!("/events{query}"), last_id).await
    }

    /// Follows the delivery logs: opens a stream and reads its first block, after which every new
    /// entry is sent.
    pub async fn open_logs(api: &Api, query: &str) -> Stream {
        let path = format!("/logs{query}");
        let response = Stream::request_at(api, &path, None)
            .await
            .expect("a response");
        assert_eq!(response.status(), 200);

        let mut stream = Stream {
            response,
            rest: String::new(),
            last_id: None,
        };
        let first = stream.next().await.expect("a first block");
        assert!(first.retry.is_some() && first.data.is_none(), "{first:?}");

        stream
    }

    /// Sends the request of a stream at this path.
    pub async fn request_at(
        api: &Api,
        path: &str,
        last_id: Option<&str>,
    ) -> reqwest::Result<Response> {
        // A client for each, and thus a connection.
        let client = Client::builder()
            .no_proxy()
            .build()
            .expect("a client without TLS settings");
        let mut request = client
            .get(format!("{}{path}", api.url))
            .bearer_auth(&api.token);

        request = request.header(ACCEPT, "text/event-stream");

        if let Some(last_id) = last_id {
            request = request.header("last-event-id", last_id);
        }

        request.send().await
    }

    /// Returns the next block. None at the end of the stream.
    pub async fn next(&mut self) -> Option<Block> {
        self.next_within(DEADLINE).await
    }

    pub async fn next_within(&mut self, limit: Duration) -> Option<Block> {
        let next = tokio::time::timeout(limit, self.try_next())
            .await
            .expect("the next part of the stream");
        next.expect("the stream is not cut off")
    }

    /// Like [`Stream::next`], for a process that may be killed. May be dropped before it ends.
    pub async fn try_next(&mut self) -> reqwest::Result<Option<Block>> {
        loop {
            if let Some((block, rest)) = self.rest.split_once("\n\n") {
                let block = Block::parse(block);
                let rest = rest.to_owned();

                self.rest = rest;
                self.last_id = block.id.clone().or(self.last_id.take());
                return Ok(Some(block));
            }

            let Some(chunk) = self.response.chunk().await? else {
                return Ok(None);
            };

            self.rest
                .push_str(std::str::from_utf8(&chunk).expect("blocks are not split"));
        }
    }

    /// Returns the next event.
    pub async fn event(&mut self) -> Block {
        loop {
            let block = self.next().await.expect("the stream goes on");
            if block.data.is_some() {
                return block;
            }
        }
    }

    /// Returns the ids of the next `count` events.
    pub async fn ids(&mut self, count: usize) -> Vec<String> {
        let mut ids = Vec::new();
        while ids.len() < count {
            let event = self.event().await.json();
            ids.push(event["id"].as_str().expect("an id").to_owned());
        }

        ids
    }

    /// Waits until the stream ends.
    pub async fn end(mut self) {
        while self.next().await.is_some() {}
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
