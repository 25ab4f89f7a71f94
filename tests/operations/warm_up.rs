//! What a sidecar prepares at its start, so that the first event does not wait for it.

use crate::support::{TestApp, one, run_sql};

/// The warm-up has a limit of a second, which a busy machine may exceed.
const STARTS: usize = 10;

#[tokio::test]
async fn statements_are_prepared_before_the_first_event_needs_them() {
    let mut app = TestApp::prepare().await;
    app.setup().await;

    for url in [&app.source_url, &app.store_url] {
        // The server logs each statement that a session prepares.
        let client = walhook::postgres::connect(url).await.unwrap();
        let database: String = one(&client, "select current_database()").await;
        let log = format!("alter database \"{database}\" set log_min_duration_statement = 0");

        run_sql(&client, &log).await;
    }

    let platform = app.platform().await;
    let user = platform.user(&[]).await;

    for start in 1..=STARTS {
        app.run().await;

        // This event needs neither a lookup nor a delivery. It is stored after the warm-up.
        platform.payment(user, "ready").await;
        app.wait_for_events(start).await;

        let log = std::fs::read_to_string(app.server.log_file()).unwrap();
        if log.contains("from walhook.lookup_row") && log.contains("insert into walhook.delivery (")
        {
            return;
        }

        app.stop().await;
    }

    panic!("none of {STARTS} starts prepared everything");
}
