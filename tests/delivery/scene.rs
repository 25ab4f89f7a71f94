//! A running sidecar with a user, and a webhook of this user for payments.

use serde_json::{Value, json};

use crate::support::{Api, Platform, Receiver, TestApp};

const EVENT: &str = "payment.statement_ready";

pub struct Scene {
    pub app: TestApp,
    pub platform: Platform,
    pub user: i64,
    pub receiver: Receiver,
    pub api: Api,
    pub webhook: String,
}

impl Scene {
    pub async fn begin(settings: &[(&str, &str)]) -> Scene {
        let mut app = TestApp::prepare().await;

        for (key, value) in settings {
            app.set(key, value);
        }

        app.setup().await;
        app.run().await;

        let platform = app.platform().await;
        let user = platform.user(&[]).await;
        let receiver = Receiver::start().await;
        let api = app.api(&user.to_string()).await;
        let (webhook, _) = api.create_webhook(&receiver.url("/"), &[EVENT]).await;

        Scene {
            app,
            platform,
            user,
            receiver,
            api,
            webhook,
        }
    }

    /// Causes an event.
    pub async fn payment(&self) {
        self.platform.payment(self.user, "ready").await;
    }

    /// Returns the path of the webhook in the API.
    pub fn path(&self) -> String {
        format!("/webhooks/{}", self.webhook)
    }

    pub async fn set_active(&self, active: bool) -> Value {
        self.api
            .patch(&self.path(), json!({ "active": active }))
            .await
            .expect(200)
            .json()
    }
}
