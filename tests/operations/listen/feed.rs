//! An event feed as the API serves it: pages, cursors, filter and long poll. Its responses can be
//! replaced by a script.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Response};
use axum::routing::get;
use rustls::ServerConfig;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::support::serve_tls;

pub const TOKEN: &str = "a-token";
const BASE: &str = "/api/public";

/// How to respond to a request.
pub enum Reply {
    /// As the API does.
    Page,
    Full(u16, Vec<(&'static str, String)>, String),
}

#[derive(Clone)]
pub struct Event {
    pub id: Uuid,
    pub kind: &'static str,
    pub data: String,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub parameters: HashMap<String, String>,
    pub at: Instant,
}

type Script = Box<dyn FnMut(&Request) -> Reply + Send>;

struct Shared {
    events: watch::Sender<Vec<Event>>,
    requests: Mutex<Vec<Request>>,
    script: Mutex<Script>,
}

/// A running feed. Closed when dropped.
pub struct FeedServer {
    /// Scheme, host and port.
    pub origin: String,
    shared: Arc<Shared>,
    _server: AbortOnDropHandle<()>,
}

impl FeedServer {
    pub async fn start() -> FeedServer {
        FeedServer::start_with(None).await
    }

    /// Serves over TLS, as `localhost`.
    pub async fn start_tls(config: Arc<ServerConfig>) -> FeedServer {
        FeedServer::start_with(Some(config)).await
    }

    async fn start_with(tls: Option<Arc<ServerConfig>>) -> FeedServer {
        let shared = Arc::new(Shared {
            events: watch::channel(Vec::new()).0,
            requests: Mutex::default(),
            script: Mutex::new(Box::new(|_| Reply::Page)),
        });

        let router = Router::new()
            .route(&format!("{BASE}/events"), get(events))
            .with_state(shared.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let origin = match tls {
            Some(_) => format!("https://localhost:{}", address.port()),
            None => format!("http://{address}"),
        };

        let server = tokio::spawn(async move {
            match tls {
                Some(config) => serve_tls(listener, config, router).await,
                None => axum::serve(listener, router).await.unwrap(),
            }
        });

        FeedServer {
            origin,
            shared,
            _server: AbortOnDropHandle::new(server),
        }
    }

    pub fn url(&self) -> String {
        format!("{}{BASE}", self.origin)
    }

    /// Appends an event.
    pub fn push(&self, kind: &'static str) -> Event {
        let count = self.shared.events.borrow().len();

        // Spaces and an escape that no serialiser would write.
        let data = format!(r#"{{"n": {count},  "title":"\u00e4 ä"}}"#);
        let event = Event {
            id: Uuid::now_v7(),
            kind,
            data,
        };

        self.shared
            .events
            .send_modify(|events| events.push(event.clone()));
        event
    }

    /// Responds to each request as `script` decides, from now on.
    pub fn script(&self, script: impl FnMut(&Request) -> Reply + Send + 'static) {
        *self.shared.script.lock().unwrap() = Box::new(script);
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }
}

async fn events(
    State(shared): State<Arc<Shared>>,
    Query(parameters): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response<Body> {
    let request = Request {
        parameters: parameters.clone(),
        at: Instant::now(),
    };

    let reply = (shared.script.lock().unwrap())(&request);
    shared.requests.lock().unwrap().push(request);

    if let Reply::Full(status, headers, body) = reply {
        return respond(status, &headers, body.into());
    }

    if headers
        .get("authorization")
        .is_none_or(|given| given != &format!("Bearer {TOKEN}"))
    {
        return problem(
            401,
            json!({"title": "No valid token", "detail": "the token is unknown or revoked"}),
        );
    }

    let Some(page) = page(&shared, &parameters).await else {
        let errors = json!([{"pointer": "/after", "detail": "is not a cursor of this feed"}]);
        return problem(
            400,
            json!({"title": "The request is not valid", "errors": errors}),
        );
    };

    respond(
        200,
        &[("content-type", "application/json".to_owned())],
        page.into(),
    )
}

/// Returns the page as text, or None if the cursor is unknown.
async fn page(shared: &Shared, parameters: &HashMap<String, String>) -> Option<String> {
    let parameter = |name: &str| parameters.get(name).map(String::as_str);
    let number =
        |name, default| parameter(name).map_or(default, |text| text.parse::<usize>().unwrap());
    let kinds: Option<Vec<&str>> = parameter("event").map(|kinds| kinds.split(',').collect());
    let mut events = shared.events.subscribe();
    let start = match parameter("after").unwrap_or("earliest") {
        "earliest" => 0,
        "latest" => events.borrow().len(),
        cursor => cursor.strip_prefix('c')?.parse().ok()?,
    };

    let matches = |event: &Event| {
        kinds
            .as_ref()
            .is_none_or(|kinds| kinds.contains(&event.kind))
    };

    let wanted = |events: &Vec<Event>| events[start..].iter().any(matches);
    let wait = number("wait", 0);

    assert!(wait <= 30);
    let _ = tokio::time::timeout(Duration::from_secs(wait as u64), events.wait_for(wanted)).await;
    let events = events.borrow();
    let numbered = events
        .iter()
        .enumerate()
        .skip(start)
        .filter(|(_, event)| matches(event));
    let limit = number("limit", 50);
    let page: Vec<(usize, &Event)> = numbered.take(limit).collect();
    let next = if page.len() == limit {
        page[limit - 1].0 + 1
    } else {
        events.len()
    };

    let data: Vec<String> = page.iter().map(|(_, event)| object(event)).collect();
    Some(format!(
        r#"{{"data":[{}],"next_cursor":"c{next}"}}"#,
        data.join(",")
    ))
}

fn object(Event { id, kind, data }: &Event) -> String {
    let at = "2026-03-01T09:04:59.123456+00:00";
    format!(r#"{{"id":"{id}","event":"{kind}","occurred_at":"{at}","label_id":7,"data":{data}}}"#)
}

fn problem(status: u16, body: serde_json::Value) -> Response<Body> {
    respond(
        status,
        &[("content-type", "application/problem+json".to_owned())],
        body.to_string().into(),
    )
}

fn respond(status: u16, headers: &[(&'static str, String)], body: Body) -> Response<Body> {
    let builder = headers.iter().fold(
        Response::builder().status(status),
        |builder, (name, value)| builder.header(*name, value),
    );
    builder.body(body).unwrap()
}
