//! The OpenAPI document and the list of events.

use serde_json::{Value, json};
use walhook::events::CATALOGUE;

use crate::fixture::Service;
use crate::support::TestApp;

const COMMITTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");

#[tokio::test]
async fn the_printed_committed_and_served_documents_are_equal() {
    let printed = TestApp::prepare().await.walhook_ok(&["openapi"]).await;
    let committed = std::fs::read_to_string(COMMITTED).unwrap_or_default();
    assert!(committed == printed, "docs/openapi.json is out of date: `walhook openapi > docs/openapi.json`");
    let service = Service::start().await;
    let served = service.api("1").await.get("/openapi.json").await.expect(200);
    assert_eq!(served.body, printed);
    assert_eq!(served.header("content-type"), Some("application/json"));
}

#[tokio::test]
async fn every_operation_has_a_unique_name_and_lists_its_problems() {
    let document: Value = serde_json::from_str(&walhook::api::openapi_document("/base")).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["servers"][0]["url"], "/base");
    let mut names = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            names.push(operation["operationId"].as_str().unwrap());
            assert!(operation["responses"]["401"].is_object(), "{method} {path}");
            assert_eq!(operation["responses"]["404"].is_object(), path.contains('{'), "{method} {path}");
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    let text = document.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = &reference[..reference.find('"').unwrap()];
        assert!(document["components"]["schemas"][name].is_object(), "{name} is referenced but does not exist");
    }
    assert_eq!(document["components"]["schemas"]["CreateWebhook"]["additionalProperties"], json!(false));
}

#[tokio::test]
async fn deliveries_are_described_as_they_are_sent() {
    let document: Value = serde_json::from_str(&walhook::api::openapi_document("/base")).unwrap();
    assert_eq!(document["webhooks"].as_object().unwrap().len(), CATALOGUE.len());
    for rule in CATALOGUE {
        let operation = &document["webhooks"][rule.kind.as_str()]["post"];
        let body = &operation["requestBody"]["content"]["application/json"];
        assert_eq!(body["example"]["event"], rule.kind.as_str());
        assert!(jsonschema::draft202012::is_valid(&body["schema"], &body["example"]), "{}", rule.kind);
        // Within the document, such a reference would start at the document's root.
        assert!(!body["schema"].to_string().contains("#/$defs"), "{}", rule.kind);
        let headers: Vec<&str> =
            operation["parameters"].as_array().unwrap().iter().map(|header| header["name"].as_str().unwrap()).collect();
        for name in ["X-Webhook-Signature", "X-Webhook-Timestamp", "X-Webhook-Delivery", "webhook-signature"] {
            assert!(headers.contains(&name), "{name}");
        }
    }
}

#[tokio::test]
async fn the_events_are_listed_with_schema_and_example() {
    let service = Service::start().await;
    let answer = service.api("1").await.get("/webhooks/event-types").await.expect(200).json();
    let data = answer["data"].as_array().unwrap();
    assert_eq!(data.len(), CATALOGUE.len());
    for (listed, rule) in data.iter().zip(CATALOGUE.iter()) {
        let keys: Vec<&str> = listed.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["event", "description", "requires_addon", "schema", "example"]);
        assert_eq!(listed["event"], rule.kind.as_str());
        assert!(jsonschema::draft202012::is_valid(&listed["schema"], &listed["example"]), "{}", rule.kind);
    }
}
