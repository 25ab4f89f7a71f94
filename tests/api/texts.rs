//! Names and URLs as they are stored and shown. The resolver is a stand-in, the guard is the real
//! one.

use std::sync::Arc;

use serde_json::{Value, json};
use walhook::deliver::guard::{AddressLookup, Guard};

use crate::fixture::Service;
use crate::support::Api;

/// A service whose names all resolve to the same public address.
async fn service() -> Service {
    let lookup: AddressLookup =
        Arc::new(|_, port| Box::pin(async move { Ok(vec![([1, 1, 1, 1], port).into()]) }));
    Service::start_guarded(Guard::new(false, Vec::new()).with_lookup(lookup)).await
}

fn body(member: &str, value: &str) -> Value {
    let mut body =
        json!({ "name": "x", "url": "https://receiver.example/in", "events": ["delivery.failed"] });
    body[member] = value.into();
    body
}

/// Creates a webhook and returns the member as it is stored.
async fn stored(api: &Api, member: &str, value: &str) -> Value {
    let created = api
        .post("/webhooks", body(member, value))
        .await
        .expect(201)
        .json();
    let path = format!("/webhooks/{}", created["id"].as_str().unwrap());
    let read = api.get(&path).await.expect(200).json()[member].clone();

    api.delete(&path).await.expect(204);
    assert_eq!(created[member], read);

    read
}

/// Sends values that must be rejected, and returns the details of the errors.
async fn rejected(api: &Api, member: &str, value: &str) -> String {
    let errors = api
        .post("/webhooks", body(member, value))
        .await
        .expect(422)
        .json()["errors"]
        .clone();

    assert_eq!(errors[0]["pointer"], format!("/{member}"), "{value:?}");
    errors[0]["detail"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_url_is_stored_as_it_is_called() {
    let service = service().await;
    let api = service.api("1").await;

    for (typed, called) in [
        (
            "https://receiver.example/in?a=b",
            "https://receiver.example/in?a=b",
        ),
        ("HTTPS://Receiver.EXAMPLE:443", "https://receiver.example/"),
        ("https:receiver.example/in", "https://receiver.example/in"),
        (
            "https:\\\\receiver.example\\in",
            "https://receiver.example/in",
        ),
        (
            "https://receiver.example\\@other.example/",
            "https://receiver.example/@other.example/",
        ),
        (
            "https://re\u{ad}ceiver.example/in",
            "https://receiver.example/in",
        ),
        (
            "https://re\u{200b}ceiver.example/in\u{200b}",
            "https://receiver.example/in%E2%80%8B",
        ),
        (
            "https://receiver\u{3002}example/a/../b",
            "https://receiver.example/b",
        ),
        (
            "https://b\u{fc}cher.example/",
            "https://xn--bcher-kva.example/",
        ),
        ("https://@receiver.example/", "https://receiver.example/"),
        ("https://0x01010101/", "https://1.1.1.1/"),
    ] {
        assert_eq!(stored(&api, "url", typed).await, called, "{typed:?}");
    }

    for (typed, reason) in [
        ("https://receiver.example:0/", "port 0"),
        (
            "https://receiver.example/\tin",
            "spaces or control characters",
        ),
        ("https://user@receiver.example/", "user name"),
    ] {
        let detail = rejected(&api, "url", typed).await;
        assert!(detail.contains(reason), "{typed:?}: {detail}");
    }
}

#[tokio::test]
async fn an_edit_to_another_spelling_of_the_url_changes_nothing() {
    let service = service().await;
    let api = service.api("1").await;
    let created = api
        .post("/webhooks", body("url", "https://receiver.example/"))
        .await
        .expect(201);
    let path = format!("/webhooks/{}", created.json()["id"].as_str().unwrap());
    let edited = api
        .patch(&path, json!({ "url": "https://RECEIVER.example" }))
        .await
        .expect(200);

    assert_eq!(edited.header("etag"), created.header("etag"));
}

#[tokio::test]
async fn names_are_trimmed_and_have_no_invisible_characters() {
    let service = service().await;
    let api = service.api("1").await;

    for (typed, kept) in [
        ("\u{a0} Shop \u{2003}", "Shop"),
        ("Münchner Büro 🎵❤\u{fe0f}", "Münchner Büro 🎵❤\u{fe0f}"),
    ] {
        assert_eq!(stored(&api, "name", typed).await, kept, "{typed:?}");
    }

    let spoken = "שלום";
    assert_eq!(
        stored(&api, "name", spoken).await,
        spoken,
        "a language that is written from right to left"
    );

    for blank in ["", "  ", "\u{3000}"] {
        assert_eq!(
            rejected(&api, "name", blank).await,
            "must not be blank",
            "{blank:?}"
        );
    }

    for (hidden, name) in [
        ("Sh\u{200b}op", "U+200B"),
        ("Shop\u{202e}dellac", "U+202E"),
        ("\u{2066}Shop", "U+2066"),
        ("Sh\u{ad}op", "U+00AD"),
        ("Shop\u{feff}", "U+FEFF"),
        ("Sh\nop", "U+000A"),
        ("Shop\u{2028}2", "U+2028"),
        ("\u{2800}", "U+2800"),
    ] {
        for member in ["name", "description"] {
            // A description may have lines.
            if member == "description" && hidden.contains('\n') {
                continue;
            }

            let detail = rejected(&api, member, hidden).await;
            assert!(
                detail.contains(name) && detail.contains("remove"),
                "{member} {hidden:?}: {detail}"
            );
        }
    }
}
