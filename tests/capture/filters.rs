//! Filters of webhooks apply to the events that a repair raises.

use serde_json::json;

use crate::support::{Receiver, TestApp};
use crate::wait_until_unready;

#[tokio::test]
async fn a_repair_delivers_only_events_that_pass_the_filter() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let user = platform.user(&[]).await;
    let mine = platform.label(user).await;
    let other = platform.label(user).await;
    let receiver = Receiver::start().await;
    let api = app.api(&user.to_string()).await;
    let mut body =
        json!({ "name": "x", "url": receiver.url("/"), "events": ["release.distributed"] });

    body["filter"] = json!({ "label_ids": [mine] });
    let created = api.post("/webhooks", body).await.expect(201).json();
    let wanted = platform.release(mine).await;
    let unwanted = platform.release(other).await;

    // Streamed before the gap: the ledger knows both releases then.
    let last = platform.release(mine).await;
    platform.set_delivery_status(last, "distributed").await;
    receiver.wait_for(1).await;
    app.wait_for_events(1).await;
    app.drop_slot().await;
    wait_until_unready(app.sidecar(), "(slot_missing)").await;

    for release in [unwanted, wanted] {
        platform.set_delivery_status(release, "distributed").await;
    }

    let repaired = app.walhook_ok(&["repair"]).await;
    assert!(repaired.contains("release.distributed"), "{repaired}");

    let received = receiver.wait_for(2).await;
    assert_eq!(received[1].data()["release_id"], wanted);

    let store = app.store().await;
    let counts = "select (select count(*) from walhook.event where repaired),
                         (select count(*) from walhook.pending where webhook_id = $1::text::uuid),
                         (select count(*) from walhook.missed_event)";
    let id = created["id"].as_str().unwrap();

    api.wait_for_logs(id, "both", |logs| logs.len() == 2).await;
    let row = store.query_one(counts, &[&id]).await.unwrap();
    assert_eq!(
        [0, 1, 2].map(|column| row.get::<_, i64>(column)),
        [2, 0, 0],
        "two events, one of them for nobody"
    );
}
