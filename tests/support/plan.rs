//! Query plans of statements.

use tokio_postgres::{Client, SimpleQueryMessage};
use walhook::store::logs::{LIST, ListStatements};

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
/// log are not sorted before they are limited: an index returns them in order. The few rows that are
/// returned may be sorted, and a user's few webhooks.
#[track_caller]
pub fn assert_stays_on_indexes(what: &str, plans: &[String; 2]) {
    for plan in plans {
        assert!(plan.contains("Index"), "{what}:\n{plan}");
        let reads_whole =
            |line: &&str| line.contains("Seq Scan on ") && !line.contains("cost=0.00..0.0");
        assert_eq!(plan.lines().find(reads_whole), None, "{what}:\n{plan}");

        // The last rows are found before those that match are sorted and returned.
        let reading = plan
            .split_once("WindowAgg")
            .map_or("", |(_, reading)| reading);

        for wrong in ["->  Sort", "->  Incremental Sort", "Bitmap"] {
            assert!(
                !what.starts_with("the log") || !reading.contains(wrong),
                "{what}:\n{plan}"
            );
        }
    }
}

const LOG_TYPES: &str = "text, uuid[], uuid, uuid, bigint, uuid[], text, text, timestamptz, timestamptz, smallint, \
                         text, text, uuid, bigint";
const NIL: &str = "00000000-0000-0000-0000-000000000000";
const MAX: &str = "ffffffff-ffff-ffff-ffff-ffffffffffff";

/// The arguments of a statement that lists entries: `rest` are those of the filters.
fn log_arguments(user: &str, webhook: &str, rest: &str) -> String {
    format!("'{user}', '{{{webhook}}}', '{NIL}', '{MAX}', 250, {rest}, 51")
}

/// Asserts that every combination of the filters of the delivery log reads entries by an index. What
/// it reads is bounded: a page that has not read all says that it is partial.
pub async fn assert_filters_stay_on_indexes(client: &Client, user: &str, webhook: &str) {
    let filters = [
        "'delivery.failed'",
        "'failed'",
        "now() - interval '2 days'",
        "now()",
        "5",
        "'dns'",
        "'12'",
        &format!("'{NIL}'"),
    ];
    let ListStatements {
        all,
        failures,
        of_events,
    } = &*LIST;
    let events = format!("'{{{NIL},{MAX}}}'");

    for (what, statement, events) in [
        ("the log", all, "null"),
        ("the log of failures", failures, "null"),
        ("entries of events", of_events, &*events),
    ] {
        for combination in 0..1 << filters.len() {
            let is_given = |index: usize| combination & (1 << index) != 0;
            let given = filters.iter().enumerate();
            let given = given.map(|(index, value)| if is_given(index) { value } else { "null" });
            let given: Vec<&str> = [events].into_iter().chain(given).collect();
            let arguments = log_arguments(user, webhook, &given.join(", "));

            let plans = plans(client, statement, LOG_TYPES, &arguments).await;
            assert_stays_on_indexes(&format!("{what} ({arguments})"), &plans);
        }
    }
}

/// The statements by which the API and the web UI read: their purpose, text, parameter types, and
/// arguments for `user` and `webhook`.
pub fn reads(user: &str, webhook: &str) -> Vec<(&'static str, &'static str, &'static str, String)> {
    const GET: &str = walhook::sql::store::webhook::GET;
    const ENTRY: &str = walhook::sql::store::attempt::GET;
    const ERRORS: &str = walhook::sql::store::attempt::LIST_ERRORS;
    const HOURS: &str = walhook::sql::store::webhook_hour::USER;
    const SESSION: &str = walhook::sql::store::session::FIND;
    const DELIVERY: &str = walhook::sql::store::delivery::READ;
    const ATTEMPTS: &str = walhook::sql::store::attempt::LIST_OF_DELIVERY;
    const TOKEN: &str = walhook::sql::store::api_token::FIND_USER;
    const RELEASES: &str = walhook::sql::store::event::RELEASES_OF_CATALOGUE;
    const OF_RELEASES: &str = walhook::sql::store::event::FIND_OF_RELEASES;
    const OF_TRACK: &str = walhook::sql::store::event::FIND_OF_TRACK;
    const NEWEST: &str = walhook::sql::store::event::FEED_NEWEST;
    const FILTER_VALUES: &str = walhook::sql::store::event::FILTER_VALUES;

    let log = |rest: &str| log_arguments(user, webhook, rest);
    let ListStatements {
        all,
        failures,
        of_events,
    } = &*LIST;

    vec![
        (
            "webhooks",
            GET,
            "text, uuid, uuid, bigint",
            format!("'{user}', '{NIL}', '{MAX}', 51"),
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
            all,
            LOG_TYPES,
            log("null, null, null, null, null, null, null, null, null"),
        ),
        (
            "the log of an event, an outlet and a time",
            all,
            LOG_TYPES,
            log(
                "null, 'delivery.failed', null, now() - interval '2 days', now(), 2, null, '12', null",
            ),
        ),
        (
            "the log of failures",
            failures,
            LOG_TYPES,
            log("null, null, 'failed', null, null, 5, 'dns', null, null"),
        ),
        (
            "entries of events",
            of_events,
            LOG_TYPES,
            log(&format!(
                "'{{{NIL},{MAX}}}', null, null, null, null, null, null, null, '{NIL}'"
            )),
        ),
        (
            "releases of a catalogue number",
            RELEASES,
            "text, bigint, text, bigint",
            format!("'{user}', 7, 'cat-001', 5000"),
        ),
        (
            "events of releases",
            OF_RELEASES,
            "text, bigint[], bigint, uuid, bigint, bigint",
            format!("'{user}', '{{7}}', null, '{MAX}', 5000, 501"),
        ),
        (
            "events of a track",
            OF_TRACK,
            "text, bigint, uuid, bigint, bigint",
            format!("'{user}', 7, '{MAX}', 5000, 501"),
        ),
        (
            "the newest events",
            NEWEST,
            "text, bigint, bigint, text, bigint",
            format!("'{user}', 9223372036854775807, 0, null, 51"),
        ),
        (
            "values of filters",
            FILTER_VALUES,
            "text, bigint, bigint",
            format!("'{user}', 2000, 500"),
        ),
        (
            "failures among the newest entries",
            ERRORS,
            "text, uuid, uuid, bigint",
            format!("'{user}', '{webhook}', '{NIL}', 1000"),
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
            format!("'{user}', '{webhook}', '{NIL}', '{NIL}'"),
        ),
        (
            "the attempts of a delivery",
            ATTEMPTS,
            "text, uuid, uuid, uuid, uuid, bigint",
            format!("'{user}', '{webhook}', '{NIL}', '{NIL}', '{NIL}', 200"),
        ),
        (
            "an entry",
            ENTRY,
            "text, uuid, uuid",
            format!("'{user}', '{webhook}', '{NIL}'"),
        ),
    ]
}
