//! The commands on the page of a delivery do what they say.

use std::path::Path;
use std::process::Stdio;

use tokio::process::Command;

use crate::browser::{self, Kind};
use crate::fixture::{REVIEW, Stage};
use crate::support::are_installed;

/// Returns a shell that finds `walhook`. Killed when its child is dropped.
fn shell(script: &str, token: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_walhook"));
    let directory = program.parent().expect("a directory").display();
    let mut command = Command::new("sh");

    command
        .args(["-c", &format!("PATH={directory}:$PATH; exec {script}")])
        .env("WALHOOK_TOKEN", token)
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true);
    command
}

#[tokio::test]
async fn the_commands_of_a_delivery_send_it_again_and_forward_it() {
    if !browser::is_available() || !are_installed(&["curl"]) {
        return;
    }

    let stage = Stage::start().await;
    let receiver = &stage.receiver;
    let (id, secret) = stage
        .api
        .create_webhook(&receiver.url("/in"), &[REVIEW])
        .await;
    let release = stage.platform.release(stage.label).await;
    let title = "update release set title = 'It''s \"Here\" & now' where id = $1";
    stage.platform.execute(title, &[&release]).await;
    stage.platform.set_review_status(release, "to_review").await;
    stage
        .api
        .wait_for_logs(&id, "a delivery", |logs| !logs.is_empty())
        .await;

    let entry = stage.entry(&id, "delivered").await;
    let browser = stage.browser(Kind::Desktop).await;
    browser
        .visit(&format!("/ui/webhooks/{id}/logs/{entry}"))
        .await;
    browser.find("[data-copy=listen]").await;
    let text = async |element: &str| {
        let script = format!("return document.getElementById('{element}').textContent");
        browser.evaluate(&script).await.as_str().unwrap().to_owned()
    };

    let curl = shell(&text("curl").await, "").status().await.unwrap();
    assert!(curl.success());
    let sent = receiver.wait_for(2).await;
    sent[1].assert_sound(&secret);
    assert_eq!(sent[1].body, sent[0].body);

    // Signed with a secret of its own.
    let elsewhere = receiver.url("/forwarded");
    let listen = text("listen").await;
    let listen = listen.replace("http://localhost:3000/hooks", &elsewhere);
    let _listening = shell(&listen, &stage.api.token).spawn().unwrap();
    let forwarded = receiver.wait_for(3).await.remove(2);
    assert_eq!(forwarded.path, "/forwarded");
    assert_eq!(forwarded.data(), sent[0].data());
}
