//! Query plans of statements.

use tokio_postgres::{Client, SimpleQueryMessage};

/// Returns the custom and the generic plan of a prepared statement. The arguments are SQL literals.
pub async fn plans(client: &Client, statement: &str, types: &str, arguments: &str) -> [String; 2] {
    let mut plans = [String::new(), String::new()];
    for (plan, mode) in plans
        .iter_mut()
        .zip(["force_custom_plan", "force_generic_plan"])
    {
        let script = format!(
            "set plan_cache_mode = {mode}; prepare planned ({types}) as {statement};
             explain execute planned ({arguments}); deallocate planned; reset plan_cache_mode"
        );
        let messages = client.simple_query(&script).await;
        for message in
            messages.unwrap_or_else(|error| panic!("{}", walhook::postgres::describe(&error)))
        {
            if let SimpleQueryMessage::Row(row) = message {
                plan.push_str(row.get(0).unwrap_or_default());
                plan.push('\n');
            }
        }
    }

    plans
}

/// Asserts that no table is scanned sequentially, except empty ones, and that rows of the attempt
/// log are not sorted: an index returns them in order. A user's few webhooks may be sorted.
#[track_caller]
pub fn assert_stays_on_indexes(what: &str, plans: &[String; 2]) {
    for plan in plans {
        assert!(plan.contains("Index"), "{what}:\n{plan}");
        let reads_whole =
            |line: &&str| line.contains("Seq Scan on ") && !line.contains("cost=0.00..0.00");
        assert_eq!(plan.lines().find(reads_whole), None, "{what}:\n{plan}");

        for wrong in ["->  Sort", "->  Incremental Sort", "Bitmap"] {
            assert!(
                !what.starts_with("the log") || !plan.contains(wrong),
                "{what}:\n{plan}"
            );
        }
    }
}

/// The statements by which the API and the web UI read: their purpose, text, parameter types, and
/// arguments for `user` and `webhook`.
pub fn reads(user: &str, webhook: &str) -> Vec<(&'static str, &'static str, &'static str, String)> {
    const GET: &str = walhook::sql::store::webhook::GET;
    const LOG: &str = walhook::sql::store::attempt::LIST;
    const ENTRY: &str = walhook::sql::store::attempt::GET;
    const ERRORS: &str = walhook::sql::store::attempt::LIST_ERRORS;
    const HOURS: &str = walhook::sql::store::webhook_hour::USER;
    const SESSION: &str = walhook::sql::store::session::FIND;
    const DELIVERY: &str = walhook::sql::store::delivery::READ;
    const ATTEMPTS: &str = walhook::sql::store::attempt::LIST_OF_DELIVERY;
    const TOKEN: &str = walhook::sql::store::api_token::FIND_USER;
    const LOG_TYPES: &str =
        "text, uuid, uuid, uuid, text, text, timestamptz, timestamptz, smallint, bigint, bigint";

    let nil = "00000000-0000-0000-0000-000000000000";
    let max = "ffffffff-ffff-ffff-ffff-ffffffffffff";
    let log = |rest: &str| format!("'{user}', '{webhook}', '{nil}', '{max}', {rest}");

    vec![
        (
            "webhooks",
            GET,
            "text, uuid, uuid, bigint",
            format!("'{user}', '{nil}', '{max}', 51"),
        ),
        (
            "a webhook",
            GET,
            "text, uuid, uuid, bigint",
            format!("'{user}', '{webhook}', '{webhook}', 1"),
        ),
        ("a token", TOKEN, "bytea", "'\\x00'".into()),
        (
            "the log",
            LOG,
            LOG_TYPES,
            log("null, null, null, null, null, 51, 51"),
        ),
        (
            "the log of an event",
            LOG,
            LOG_TYPES,
            log("'delivery.failed', null, null, null, null, 250, 51"),
        ),
        (
            "the log of an outcome",
            LOG,
            LOG_TYPES,
            log("null, 'failed', null, null, null, 250, 51"),
        ),
        (
            "the log of a time",
            LOG,
            LOG_TYPES,
            log("null, null, now() - interval '2 days', now(), null, 250, 51"),
        ),
        (
            "the log of a status",
            LOG,
            LOG_TYPES,
            log("null, null, null, null, 5, 250, 51"),
        ),
        (
            "failures among the newest entries",
            ERRORS,
            "text, uuid, uuid, bigint",
            format!("'{user}', '{webhook}', '{nil}', 1000"),
        ),
        (
            "the hours of a user",
            HOURS,
            "text, timestamptz",
            format!("'{user}', now() - interval '1 day'"),
        ),
        (
            "a session",
            SESSION,
            "bytea, double precision, double precision",
            "'\\x00', 1, 1".into(),
        ),
        (
            "a delivery",
            DELIVERY,
            "text, uuid, uuid, uuid",
            format!("'{user}', '{webhook}', '{nil}', '{nil}'"),
        ),
        (
            "the attempts of a delivery",
            ATTEMPTS,
            "text, uuid, uuid, uuid, uuid, bigint",
            format!("'{user}', '{webhook}', '{nil}', '{nil}', '{nil}', 200"),
        ),
        (
            "an entry",
            ENTRY,
            "text, uuid, uuid",
            format!("'{user}', '{webhook}', '{nil}'"),
        ),
    ]
}
