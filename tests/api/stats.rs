//! The statistics of a webhook.

use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::fixture::Service;

#[tokio::test]
async fn hours_are_added_up_for_a_day_and_a_month() {
    let service = Service::start().await;
    let api = service.api("1").await;
    let (id, _) = api
        .create_webhook("https://receiver.example/in", &["delivery.failed"])
        .await;
    let path = format!("/webhooks/{id}/stats");
    let nothing = json!({ "delivered": 0, "failed": 0, "permanently_failed": 0, "cancelled": 0, "success_rate": null,
                          "duration_ms": { "p50": null, "p95": null } });
    let empty = api.get(&path).await.expect(200).json();

    assert_eq!(
        empty,
        json!({ "last_24h": nothing, "last_30d": nothing, "hours": [] })
    );

    let insert = "insert into walhook.webhook_hour
                  select $1, date_trunc('hour', now()) - make_interval(hours => hours), 6, 3, 1, 2,
                      array_fill(0, array[12]) || array[9, 1] || array_fill(0, array[18])
                  from unnest(array[1, 23, 24, 719, 720]) as hours";
    service
        .sql
        .execute(insert, &[&id.parse::<Uuid>().unwrap()])
        .await
        .unwrap();

    let stats = api.get(&path).await.expect(200).json();
    assert_eq!(stats["last_24h"]["delivered"], 12);
    assert_eq!(stats["last_30d"]["cancelled"], 8);
    assert_eq!(stats["last_30d"]["success_rate"], 0.6);

    // √2¹¹ = 45 to √2¹² = 64 ms, and the next bucket.
    assert_eq!(
        stats["last_30d"]["duration_ms"],
        json!({ "p50": 54, "p95": 76 })
    );
    let hours = stats["hours"].as_array().unwrap();

    assert_eq!(hours.len(), 4);
    let begins = |hour: &Value| hour["hour"].as_str().unwrap().parse::<Timestamp>().unwrap();
    assert!(
        hours.is_sorted_by_key(begins)
            && hours
                .iter()
                .all(|hour| begins(hour).as_second() % 3_600 == 0)
    );

    assert_eq!(hours[0]["permanently_failed"], 1);
}
