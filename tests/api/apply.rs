//! `walhook apply`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::fixture::Service;
use crate::support::Api;

const URL: &str = "https://receiver.example/in";

struct Applier {
    service: Service,
    api: Api,
    directory: tempfile::TempDir,
}

impl Applier {
    async fn start() -> Applier {
        let service = Service::start().await;
        let api = service.api("1").await;
        let directory = tempfile::tempdir().unwrap();

        Applier {
            service,
            api,
            directory,
        }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("webhooks.yaml")
    }

    /// Applies a file, and returns the exit code, standard output and standard error.
    async fn apply(&self, file: &str, arguments: &[&str]) -> (i32, String, String) {
        std::fs::write(self.file(), file).unwrap();
        let path = self.file();
        let fixed = [
            "apply",
            "-f",
            path.to_str().unwrap(),
            "--api",
            &self.api.url,
        ];
        let mut command = self.service.app.command(&[&fixed, arguments].concat());
        command
            .env("WALHOOK_TOKEN", &self.api.token)
            .env("GATEWAY", "Bearer-of-the-gateway");

        let output = command.output().await.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap(),
            text(output.stdout),
            text(output.stderr),
        )
    }

    async fn names(&self) -> Vec<String> {
        let webhooks = self.api.webhooks().await;
        let name = |webhook: &Value| webhook["name"].as_str().unwrap().to_owned();
        webhooks.iter().map(name).collect()
    }
}

const FILE: &str = "
webhooks:
  - name: Catalogue
    url: https://Catalogue.example
    events: [delivery.failed, delivery.completed]
    headers:
      Authorization: ${GATEWAY}
  - name: Shop
    url: https://shop.example/hooks
    events: [release.distributed]
    filter: { label_ids: [311] }
";

#[tokio::test]
async fn webhooks_become_as_the_file_describes_them() {
    let applier = Applier::start().await;
    let (old, _) = applier.api.create_webhook(URL, &["delivery.failed"]).await;

    let (code, plan, _) = applier.apply(FILE, &["--dry-run", "--prune"]).await;
    assert_eq!(code, 0);
    assert!(plan.contains("+ Catalogue\n"), "{plan}");
    assert!(
        plan.contains("    + url: \"https://catalogue.example/\"\n"),
        "{plan}"
    );
    assert!(plan.contains(&format!("- test ({old})\n")), "{plan}");
    assert!(
        plan.contains("Plan: 2 to add, 0 to change, 1 to delete, 0 unchanged."),
        "{plan}"
    );
    assert_eq!(applier.names().await, ["test"], "a dry run changes nothing");

    let secrets = applier.directory.path().join("secrets");
    let keep = ["--secrets", secrets.to_str().unwrap()];
    let (code, done, errors) = applier.apply(FILE, &keep).await;
    assert_eq!(code, 0, "{errors}");
    assert!(
        done.contains("Catalogue: added\n") && done.contains("1 not in the file"),
        "{done}"
    );
    assert!(!format!("{done}{errors}").contains("whsec_"));
    assert!(!format!("{done}{errors}").contains("of-the-gateway"));
    assert_eq!(applier.names().await, ["test", "Catalogue", "Shop"]);
    check_secrets(&secrets);

    let (code, same, _) = applier
        .apply(FILE, &["--dry-run", "--detailed-exitcode"])
        .await;
    assert_eq!(code, 0, "{same}");
    assert!(same.contains("2 unchanged, 1 not in the file."), "{same}");

    let changed = FILE.replace("label_ids: [311]", "label_ids: [312]");
    let (code, plan, _) = applier
        .apply(&changed, &["--dry-run", "--detailed-exitcode"])
        .await;
    assert_eq!(code, 2);
    let line = "~ Shop\n    ~ filter: {\"label_ids\":[311]} -> {\"label_ids\":[312]}\n";
    assert!(plan.contains(line), "{plan}");

    let (code, done, errors) = applier.apply(&changed, &["--prune"]).await;
    assert_eq!(code, 0, "{errors}");
    assert!(
        done.contains("Shop: changed\n") && done.contains("test: deleted\n"),
        "{done}"
    );
    assert_eq!(applier.names().await, ["Catalogue", "Shop"]);

    // What the webhook is switched to meanwhile stays.
    let webhooks = applier.api.webhooks().await;
    assert_eq!(webhooks[1]["filter"], json!({ "label_ids": [312] }));
    let path = format!("/webhooks/{}", webhooks[1]["id"].as_str().unwrap());
    applier
        .api
        .patch(&path, json!({ "active": false }))
        .await
        .expect(200);
    let (_, plan, _) = applier.apply(&changed, &["--dry-run"]).await;
    assert!(plan.contains("2 unchanged."), "{plan}");

    let (_, plan, _) = applier
        .apply(&changed, &["--dry-run", "--renew-headers"])
        .await;
    assert!(
        plan.contains("~ Catalogue\n    ~ headers: their values"),
        "{plan}"
    );
}

fn check_secrets(path: &Path) {
    use std::os::unix::fs::PermissionsExt;

    let text = std::fs::read_to_string(path).unwrap();
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();

    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0]["name"], "Catalogue");
    assert!(lines[0]["secret"].as_str().unwrap().starts_with("whsec_"));
}

#[tokio::test]
async fn a_faulty_file_or_an_ambiguous_name_changes_nothing() {
    let applier = Applier::start().await;
    let (code, _, errors) = applier.apply("webhooks:\n- name: a\n  url: 7\n", &[]).await;
    assert_eq!(code, 1);
    assert!(
        errors.contains("webhooks[0].url: expected a string"),
        "{errors}"
    );
    assert!(
        errors.contains("webhooks[0].events: is required"),
        "{errors}"
    );

    let (code, _, errors) = applier.apply("webhooks:\n  - name: [\n", &[]).await;
    assert_eq!(code, 1);
    assert!(errors.contains("line"), "{errors}");

    for _ in 0..2 {
        applier.api.create_webhook(URL, &["delivery.failed"]).await;
    }

    let file = format!("{FILE}  - name: test\n    url: {URL}\n    events: [delivery.failed]\n");
    let (code, _, errors) = applier.apply(&file, &["--prune"]).await;
    assert_eq!(code, 1);
    assert!(
        errors.contains("several webhooks have the name \"test\""),
        "{errors}"
    );
    assert_eq!(applier.names().await, ["test", "test"]);

    let wrong = ["--token", "whk_wrong"];
    let (code, _, errors) = applier.apply(FILE, &wrong).await;
    assert_eq!(code, 1);
    assert!(errors.contains("WALHOOK_TOKEN"), "{errors}");
}
