//! The pages of the account's events, over plain HTTP.

use serde_json::Value;

use crate::sign_in::Visitor;

#[tokio::test]
async fn the_list_leads_to_an_event_and_its_deliveries() {
    let visitor = Visitor::start(&[]).await;
    let (_, session) = visitor.sign_in("").await;
    let text = async |path: &str| {
        let answer = visitor.get(path, &session).await;
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap())
    };

    let (_, empty) = text("/ui/events").await;
    assert!(empty.contains("No events yet"), "{empty}");

    let webhook = visitor.stage.webhook_with_log("<b>Feed</b>").await;
    let events = visitor.stage.api.get("/events").await.expect(200).json();
    let ids: Vec<&str> = events["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|event| event["id"].as_str().unwrap())
        .collect();

    let (_, list) = text("/ui/events").await;
    let mut places: Vec<Option<usize>> = ids
        .iter()
        .map(|id| list.find(&format!("/ui/events/{id}")))
        .collect();

    assert!(
        ids.len() > 3 && places.iter().all(Option::is_some),
        "{list}"
    );
    places.reverse();
    assert!(places.is_sorted(), "the newest event is first");

    let of = |kind: &str| {
        let kind = |event: &&Value| event["event"] == kind;
        events["data"]
            .as_array()
            .unwrap()
            .iter()
            .find(kind)
            .unwrap()["id"]
            .as_str()
            .unwrap()
    };

    let (_, filtered) = text("/ui/events?event=release.distributed").await;
    assert_eq!(
        filtered.matches("href=\"/ui/events/").count(),
        1,
        "{filtered}"
    );
    assert!(filtered.contains(&format!("/ui/events/{}", of("release.distributed"))));

    for wrong in ["/ui/events?event=x", "/ui/events?before=x"] {
        assert_eq!(text(wrong).await.0, 422, "{wrong}");
    }

    let entry = visitor.stage.entry(&webhook, "failed").await;
    let (status, page) = text(&format!("/ui/events/{}", of("delivery.completed"))).await;

    assert_eq!(status, 200);
    assert!(
        page.contains("&#60;b&#62;Feed&#60;/b&#62;") && page.contains(">Pending<"),
        "{page}"
    );
    assert!(
        page.contains(&format!("/ui/webhooks/{webhook}/deliveries/")),
        "{page}"
    );

    let (_, log) = text(&format!("/ui/webhooks/{webhook}/logs/{entry}")).await;
    assert!(
        log.contains(&format!("href=\"/ui/events/{}\"", of("delivery.completed"))),
        "{log}"
    );

    let (_, session) = {
        let form = format!("token={}", visitor.stage.app.token("another user").await);
        let answer = visitor
            .send(reqwest::Method::POST, "/ui/login", &[], &form)
            .await;
        (
            answer.status(),
            answer.headers()["set-cookie"]
                .to_str()
                .unwrap()
                .split(';')
                .next()
                .unwrap()
                .to_owned(),
        )
    };

    assert_eq!(
        visitor
            .get(&format!("/ui/events/{}", ids[0]), &session)
            .await
            .status(),
        404
    );

    let list = visitor
        .get("/ui/events", &session)
        .await
        .text()
        .await
        .unwrap();

    assert!(list.contains("No events yet"), "{list}");
}
