//! The values of filters: labels have the names that the platform gives them, and only their owners
//! see them.

use serde_json::{Value, json};

use crate::support::{Api, Platform, Receiver, TestApp, eventually, one};

const MODES: [&str; 2] = ["wal", "trigger"];

async fn prepared(mode: &str) -> TestApp {
    let mut app = TestApp::prepare().await;
    app.set("source.capture", mode)
        .set("source.poll_interval", "20ms");
    app
}

/// Returns the account's labels. The listing has a rate limit of its own.
async fn labels(api: &Api) -> Value {
    let listed = async || {
        let values = api.get("/webhooks/filter-values").await;
        (values.status == 200).then(|| values.json()["label_ids"].clone())
    };
    eventually("the labels", listed).await
}

/// Waits until the account has one label, by this name.
async fn wait_for_name(api: &Api, label: i64, name: Value) {
    eventually("the label's name", || async {
        let labels = labels(api).await;
        (labels[0]["id"] == label && labels[0]["name"] == name).then_some(())
    })
    .await;
}

/// Raises an event of a new release of the label.
async fn distribute(platform: &Platform, label: i64) {
    let release = platform.release(label).await;
    platform.set_delivery_status(release, "distributed").await;
}

#[tokio::test]
async fn a_label_has_its_present_name_for_its_present_owner_alone() {
    for mode in MODES {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let former = platform.user(&[]).await;
        let owner = platform.user(&[]).await;
        let copied = platform.label(former).await;

        app.setup().await;
        app.run().await;
        let api = app.api(&former.to_string()).await;
        let others = app.api(&owner.to_string()).await;

        distribute(&platform, copied).await;
        wait_for_name(&api, copied, json!(format!("Label {copied}"))).await;

        // A new name raises nothing.
        let receiver = Receiver::start().await;
        api.create_webhook(&receiver.url("/in"), &["release.distributed"])
            .await;
        let rename = "update label set name = $2 where id = $1";
        platform.execute(rename, &[&copied, &"Ürban – “1”"]).await;
        wait_for_name(&api, copied, json!("Ürban – “1”")).await;
        let store = app.store().await;
        assert_eq!(
            one::<i64>(&store, "select count(*) from walhook.event").await,
            1
        );
        assert_eq!(receiver.requests().len(), 0, "{mode}");

        let inserted = platform.label(former).await;
        distribute(&platform, inserted).await;
        wait_for_name(&api, inserted, json!(format!("Label {inserted}"))).await;

        let transfer = "update label set user_id = $2, name = 'Secret' where id = $1";
        platform.execute(transfer, &[&inserted, &owner]).await;
        wait_for_name(&api, inserted, Value::Null).await;
        assert_eq!(labels(&others).await, json!([]), "{mode}");

        distribute(&platform, inserted).await;
        wait_for_name(&others, inserted, json!("Secret")).await;
        assert_eq!(labels(&api).await[0]["name"], Value::Null, "{mode}");

        // Copies that may lack changes name nobody's labels.
        store
            .execute("delete from walhook.lookup_table where relation = 7", &[])
            .await
            .unwrap();
        wait_for_name(&others, inserted, Value::Null).await;
    }
}

#[tokio::test]
async fn capture_goes_on_when_the_platform_drops_the_names_of_labels() {
    let mut app = prepared("wal").await;
    let platform = app.platform().await;
    let former = platform.user(&[]).await;
    let owner = platform.user(&[]).await;
    let label = platform.label(former).await;
    app.setup().await;
    app.run().await;

    let drop = format!(
        "alter table label drop column name; update label set user_id = {owner} where id = {label}"
    );
    platform.transaction(&drop).await;
    distribute(&platform, label).await;
    let api = app.api(&owner.to_string()).await;
    wait_for_name(&api, label, Value::Null).await;
}

#[tokio::test]
async fn a_platform_whose_labels_have_no_names_is_captured_all_the_same() {
    for (mode, key, value) in [
        ("wal", "source.tables.label.columns.user_id", "user_id"),
        ("trigger", "source.tables.label.computed.name", "null"),
    ] {
        let mut app = prepared(mode).await;
        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let label = platform.label(user).await;
        platform
            .transaction("alter table label drop column name")
            .await;

        let refused = app.walhook(&["setup"]).await;
        let remedy = String::from_utf8_lossy(&refused.stderr);
        let expected = "set source.tables.label.computed.name to \"null\"";
        assert!(remedy.contains(expected), "{remedy}");

        app.set(key, value);
        app.setup().await;
        app.run().await;
        let api = app.api(&user.to_string()).await;
        let transfer = "update label set user_id = $2 where id = $1";
        let other = platform.user(&[]).await;
        platform.execute(transfer, &[&label, &other]).await;
        platform.execute(transfer, &[&label, &user]).await;

        distribute(&platform, label).await;
        wait_for_name(&api, label, Value::Null).await;
        let copies = "select count(*) from walhook.lookup_table where relation = 7";
        assert_eq!(one::<i64>(&app.store().await, copies).await, 1, "{mode}");
    }
}
