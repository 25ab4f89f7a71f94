//! `walhook trigger` as a black box.

use std::process::Output;

use crate::receive::{Receive, SECRET};
use crate::support::{Answer, Receiver};
use serde_json::Value;
use tokio::process::Command;
use walhook::domain::event::EventKind;
use walhook::events::rule;

async fn trigger(arguments: &[&str], secret: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walhook"));
    command
        .arg("trigger")
        .args(arguments)
        .env_remove("WALHOOK_RECEIVE_SECRET");

    command
        .envs(secret.map(|secret| ("WALHOOK_RECEIVE_SECRET", secret)))
        .output()
        .await
        .unwrap()
}

#[tokio::test]
async fn the_example_of_every_event_is_accepted_by_the_reference_receiver() {
    let mut receive = Receive::start().await;

    for kind in EventKind::ALL {
        let output = trigger(
            &[kind.as_str(), "--forward-to", &receive.url, "--json"],
            Some(SECRET),
        )
        .await;
        assert!(output.status.success(), "{output:?}");

        let line: Value = serde_json::from_slice(&output.stdout).unwrap();
        let received: Value =
            serde_json::from_str(&receive.lines.next_line().await.unwrap().unwrap()).unwrap();

        assert_eq!(
            (&line["event"], &line["response_status"]),
            (&kind.as_str().into(), &200.into())
        );
        assert_eq!(received["verified"], true, "{received}");
        assert_eq!(received["test"], true, "{received}");
        assert_ne!(received["data"], Value::Null, "{received}");
        assert_eq!(
            (&received["event"], &received["delivery"]),
            (&line["event"], &line["delivery_id"])
        );
    }
}

#[tokio::test]
async fn an_example_is_a_test_with_the_data_of_the_catalogue() {
    let receiver = Receiver::start().await;
    let output = trigger(
        &["delivery.failed", "--forward-to", &receiver.url("/hooks")],
        None,
    )
    .await;

    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();

    assert!(
        printed.contains("delivery.failed") && printed.contains("  200  "),
        "{printed}"
    );

    // Without a secret, a new one is generated and printed.
    let errors = String::from_utf8(output.stderr).unwrap();
    let secret = errors.trim_end().rsplit(' ').next().unwrap();

    assert!(secret.starts_with("whsec_"), "{errors}");
    let request = &receiver.requests()[0];

    request.assert_sound(secret);
    assert_eq!(request.header("x-webhook-test"), "true");

    let example: Value =
        serde_json::from_str(&(rule(EventKind::DeliveryFailed).example)()).unwrap();
    assert_eq!(request.data(), example);
}

#[tokio::test]
async fn anything_but_a_2xx_is_a_failure() {
    let receiver = Receiver::start().await;
    receiver.answer_in_turn(&[Answer::Status(302), Answer::Status(500), Answer::Reset]);

    for text in ["302", "500", "connection_reset"] {
        let output = trigger(
            &["transcode.failed", "--forward-to", &receiver.url("/")],
            Some(SECRET),
        )
        .await;
        let printed = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.code() == Some(1) && printed.contains(text),
            "{printed}"
        );
    }

    let unknown = trigger(
        &["transcode.done", "--forward-to", &receiver.url("/")],
        None,
    )
    .await;
    let errors = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    EventKind::ALL
        .iter()
        .for_each(|kind| assert!(errors.contains(kind.as_str()), "{errors}"));
}
