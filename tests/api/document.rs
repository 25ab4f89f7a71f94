//! The OpenAPI and the AsyncAPI document, and the list of events.

use serde_json::{Map, Value, json};
use walhook::events::CATALOGUE;

use crate::fixture::Service;
use crate::support::{Received, Receiver, TestApp, skip};

#[tokio::test]
async fn the_printed_committed_and_served_documents_are_equal() {
    let app = TestApp::prepare().await;
    let service = Service::start().await;

    for name in ["openapi", "asyncapi"] {
        let printed = app.walhook_ok(&[name]).await;
        let committed = format!("{}/docs/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let committed = std::fs::read_to_string(committed).unwrap_or_default();

        assert!(
            committed == printed,
            "docs/{name}.json is out of date: `walhook {name} > docs/{name}.json`"
        );
        let served = service
            .api("1")
            .await
            .get(&format!("/{name}.json"))
            .await
            .expect(200);

        assert_eq!(served.body, printed);
        assert_eq!(served.header("content-type"), Some("application/json"));
    }
}

#[tokio::test]
async fn every_operation_has_a_unique_name_and_lists_its_problems() {
    let document: Value = serde_json::from_str(&walhook::api::openapi_document(
        "/base",
        &Default::default(),
    ))
    .unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["servers"][0]["url"], "/base");

    let mut names = Vec::new();

    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            names.push(operation["operationId"].as_str().unwrap());
            assert!(operation["responses"]["401"].is_object(), "{method} {path}");
            assert_eq!(
                operation["responses"]["404"].is_object(),
                // A webhook can be named in the query.
                path == "/logs" || path.contains('{') && method != "put",
                "{method} {path}"
            );

            let body = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert!(
                body.is_null() || body["$ref"].is_string(),
                "{method} {path}: null is no body"
            );
        }
    }

    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);

    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = &reference[..reference.find('"').unwrap()];
        assert!(
            document["components"]["schemas"][name].is_object(),
            "{name} is referenced but does not exist"
        );
    }

    assert_eq!(
        document["components"]["schemas"]["CreateWebhook"]["additionalProperties"],
        json!(false)
    );
}

#[tokio::test]
async fn every_delivered_event_is_described_in_both_documents() {
    let openapi: Value = serde_json::from_str(&walhook::api::openapi_document(
        "/base",
        &Default::default(),
    ))
    .unwrap();
    let asyncapi: Value =
        serde_json::from_str(&walhook::api::asyncapi_document(&Default::default())).unwrap();

    assert_eq!(
        openapi["webhooks"].as_object().unwrap().len(),
        CATALOGUE.len()
    );

    for part in [
        "/operations",
        "/components/messages",
        "/channels/deliveries/messages",
    ] {
        assert_eq!(
            asyncapi.pointer(part).unwrap().as_object().unwrap().len(),
            CATALOGUE.len(),
            "{part}"
        );
    }

    for rule in CATALOGUE {
        let name = rule.kind.as_str();
        let body = &openapi["webhooks"][name]["post"]["requestBody"]["content"]["application/json"];

        assert_eq!(body["example"]["event"], name);
        assert!(
            jsonschema::draft202012::is_valid(&body["schema"], &body["example"]),
            "{name}"
        );

        // Within the document, such a reference would start at the document's root.
        assert!(!body["schema"].to_string().contains("#/$defs"), "{name}");
        let operation = &asyncapi["operations"][name];

        assert_eq!(
            (
                &operation["action"],
                &operation["bindings"]["http"]["method"]
            ),
            (&json!("send"), &json!("POST"))
        );

        let message = referenced(&asyncapi, referenced(&asyncapi, &operation["messages"][0]));
        assert_eq!(message["name"], name);
        assert_eq!(message["payload"], body["schema"]);
        assert_eq!(message["examples"][0]["payload"], body["example"]);

        // AsyncAPI's schemas extend draft 7.
        assert!(
            jsonschema::draft7::is_valid(&message["payload"], &message["examples"][0]["payload"]),
            "{name}"
        );
        assert!(
            jsonschema::draft7::is_valid(&message["headers"], &message["examples"][0]["headers"]),
            "{name}"
        );
    }
}

fn referenced<'a>(document: &'a Value, reference: &Value) -> &'a Value {
    let pointer = reference["$ref"]
        .as_str()
        .and_then(|reference| reference.strip_prefix('#'))
        .expect("a reference");
    document
        .pointer(pointer)
        .unwrap_or_else(|| panic!("{pointer} is referenced but does not exist"))
}

/// A delivery of each event, and one that is not a test.
#[tokio::test]
async fn deliveries_are_sent_as_both_documents_describe_them() {
    let mut app = TestApp::prepare().await;
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let user = platform.user(&["preflight_qc", "stream_radar"]).await;
    let api = app.api(&user.to_string()).await;
    let receiver = Receiver::start().await;
    let events: Vec<&str> = CATALOGUE.iter().map(|rule| rule.kind.as_str()).collect();
    let body = json!({ "name": "all", "url": receiver.url("/in"), "events": events, "signing": "hmac+ed25519" });
    let webhook = api.post("/webhooks", body).await.expect(201).json();
    let test = format!("/webhooks/{}/test", webhook["id"].as_str().unwrap());

    for event in &events {
        let result = api
            .post(&test, json!({ "event": event }))
            .await
            .expect(200)
            .json();
        assert_eq!(result["delivered"], true, "{event}: {result}");
    }

    platform.payment(user, "ready").await;
    let requests = receiver.wait_for(events.len() + 1).await;

    assert!(
        requests
            .iter()
            .any(|request| request.headers.contains_key("x-webhook-sequence"))
    );
    let openapi = api.get("/openapi.json").await.expect(200).json();
    let asyncapi = api.get("/asyncapi.json").await.expect(200).json();

    for request in &requests {
        let event = request.event();
        let operation = &openapi["webhooks"][event]["post"];
        let parameters = operation["parameters"].as_array().unwrap();

        let schemas: Map<String, Value> = parameters
            .iter()
            .map(|header| {
                (
                    header["name"].as_str().unwrap().to_owned(),
                    header["schema"].clone(),
                )
            })
            .collect();

        let required: Vec<&Value> = parameters
            .iter()
            .filter(|header| header["required"] == true)
            .map(|header| &header["name"])
            .collect();
        let headers = json!({ "properties": schemas, "required": required });

        assert_described(
            request,
            &headers,
            &operation["requestBody"]["content"]["application/json"]["schema"],
        );
        let message = &asyncapi["components"]["messages"][event];
        assert_described(request, &message["headers"], &message["payload"]);
    }
}

/// Asserts that all headers of a request that are not HTTP's own are described, and that headers
/// and body match their schemas.
fn assert_described(request: &Received, headers: &Value, body: &Value) {
    let schemas = headers["properties"].as_object().unwrap();
    let own = |name: &&str| {
        name.starts_with("x-webhook-") || name.starts_with("webhook-") || *name == "user-agent"
    };

    for name in request.headers.keys().map(|name| name.as_str()).filter(own) {
        assert!(
            schemas
                .keys()
                .any(|described| described.eq_ignore_ascii_case(name)),
            "{name} is not described"
        );
    }

    let sent = schemas.iter().filter_map(|(name, schema)| {
        let text = request.headers.get(name)?.to_str().unwrap();
        let is_number = schema["type"] == "integer";

        Some((
            name.clone(),
            if is_number {
                text.parse::<i64>().unwrap().into()
            } else {
                text.into()
            },
        ))
    });

    let sent = Value::Object(sent.collect());
    for (schema, instance) in [(headers, &sent), (body, &request.json())] {
        if let Err(error) = jsonschema::draft7::validate(schema, instance) {
            panic!("{}: {error} in {instance}", request.event());
        }
    }
}

#[test]
fn the_asyncapi_document_is_valid_against_the_published_schema() {
    // This test is `debug/deps/api-…` in the target directory.
    let test = std::env::current_exe().expect("a test has a path");
    let schema = test
        .ancestors()
        .nth(3)
        .expect("the target directory")
        .join("asyncapi/schemas/3.0.0.json");
    let Ok(schema) = std::fs::read_to_string(&schema) else {
        skip(&format!("{} does not exist", schema.display()));
        return;
    };

    let validator =
        jsonschema::draft7::new(&serde_json::from_str(&schema).unwrap()).expect("a valid schema");
    let mut document: Value =
        serde_json::from_str(&walhook::api::asyncapi_document(&Default::default())).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();

    assert!(errors.is_empty(), "{}", errors.join("\n"));
    document["operations"]["delivery.failed"]["action"] = "post".into();
    assert!(
        !validator.is_valid(&document),
        "the schema accepts an unknown action"
    );
}

#[tokio::test]
async fn the_events_are_listed_with_schema_and_example() {
    let service = Service::start().await;
    let answer = service
        .api("1")
        .await
        .get("/webhooks/event-types")
        .await
        .expect(200)
        .json();

    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), CATALOGUE.len());

    for (listed, rule) in data.iter().zip(CATALOGUE.iter()) {
        let keys: Vec<&str> = listed
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();

        assert_eq!(
            keys,
            [
                "event",
                "description",
                "requires_addon",
                "available",
                "schema",
                "example"
            ]
        );

        assert_eq!(listed["event"], rule.kind.as_str());
        assert!(
            jsonschema::draft202012::is_valid(&listed["schema"], &listed["example"]),
            "{}",
            rule.kind
        );
    }
}

#[tokio::test]
async fn events_that_the_platform_never_sends_are_marked_and_warned_of() {
    let tables = json!({ "track": { "absent": true }, "user_addon": { "absent": true } });
    let service = Service::start_with(|config| {
        config.source.tables = serde_json::from_value(tables).unwrap();
    })
    .await;
    let api = service.api("alice").await;

    let types = api.get("/webhooks/event-types").await.expect(200).json();
    let unavailable: Vec<&Value> = types["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|listed| listed["available"] == false)
        .map(|listed| &listed["event"])
        .collect();
    let expected = [
        "release.preflight.report_ready",
        "stream_radar.flag_created",
        "stream_radar.flag_resolved",
        "transcode.completed",
        "transcode.failed",
    ];
    assert_eq!(unavailable, expected);

    let openapi = api.get("/openapi.json").await.expect(200).json();
    let description = &openapi["webhooks"]["transcode.failed"]["post"]["description"];
    assert!(
        description
            .as_str()
            .unwrap()
            .ends_with("this platform never sends it.")
    );

    let events = [
        "delivery.completed",
        "transcode.failed",
        "transcode.completed",
    ];
    let body = json!({ "name": "n", "url": "https://receiver.example/in", "events": events });
    let created = api.post("/webhooks", body).await.expect(201).json();
    let detail = "this platform never sends transcode.completed, transcode.failed";
    let warning = json!({ "pointer": "/events", "detail": detail });
    assert!(
        created["warnings"].as_array().unwrap().contains(&warning),
        "{created}"
    );

    let path = format!("/webhooks/{}", created["id"].as_str().unwrap());
    let edited = api
        .patch(&path, json!({ "events": ["delivery.completed"] }))
        .await;
    assert_eq!(edited.expect(200).json()["warnings"], Value::Null);
}
