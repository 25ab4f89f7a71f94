//! Names that must be quoted: setup, capture, lookups and teardown with such names for everything.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_postgres::Client;
use walhook::domain::table::Table;
use walhook::postgres::{self, quote_identifier, quote_qualified};

use crate::support::{Receiver, TestApp, run_sql};

const SCHEMA: &str = r#"my "schema".é 'x';--"#;

/// Truncates a name to the 63 bytes that Postgres keeps.
fn cut(name: String) -> String {
    name.chars()
        .scan(0, |bytes, letter| {
            *bytes += letter.len_utf8();
            (*bytes <= 63).then_some(letter)
        })
        .collect()
}

fn table(table: Table) -> String {
    match table {
        Table::Payment => "select".into(),
        Table::Label => "UPPER Case".into(),
        Table::Outlet => cut(format!("outlet{}", "ö".repeat(40))),
        other => cut(format!(r#"{}."dotted".%s {{}} $1 'q' \ 🎵"#, other.name())),
    }
}

fn column(of: Table, column: &str) -> String {
    match (of, column) {
        (Table::Payment, "status") => "from".into(),
        (Table::Release, "review_status") => cut(format!("review{}", "ß".repeat(40))),
        (_, column) => cut(format!(r#"{column} "x".é,'\{{{column}}} $1;--"#)),
    }
}

fn full(of: Table) -> String {
    quote_qualified(SCHEMA, &table(of))
}

fn sql_column(of: Table, name: &str) -> String {
    quote_identifier(&column(of, name))
}

async fn rename_all(owner: &Client, role: &str) {
    let mut statements = format!("create schema {};", quote_identifier(SCHEMA));

    for of in Table::ALL.iter().copied() {
        for name in of.columns() {
            statements += &format!(
                "alter table {} rename column {name} to {};",
                of.name(),
                sql_column(of, name)
            );
        }

        statements += &format!(
            "alter table {} rename to {};",
            of.name(),
            quote_identifier(&table(of))
        );
        statements += &format!(
            "alter table {} set schema {};",
            quote_identifier(&table(of)),
            quote_identifier(SCHEMA)
        );
        statements += &format!("alter table {} owner to {role};", full(of));
    }

    statements += &format!("alter schema {} owner to {role};", quote_identifier(SCHEMA));
    run_sql(owner, &statements).await;
}

fn map_all(app: &mut TestApp) {
    let part = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));

    for of in Table::ALL.iter().copied() {
        app.set(
            &format!("source.tables.{}.table", of.name()),
            &format!("{}.{}", part(SCHEMA), part(&table(of))),
        );

        for name in of.columns() {
            app.set(
                &format!("source.tables.{}.columns.{name}", of.name()),
                &column(of, name),
            );
        }
    }
}

fn insert(of: Table, values: &[(&str, &str)]) -> String {
    let columns: Vec<String> = values
        .iter()
        // A column that is not mapped keeps its name.
        .map(|(name, _)| {
            if of.column(name).is_some() {
                sql_column(of, name)
            } else {
                (*name).to_owned()
            }
        })
        .collect();

    let values: Vec<&str> = values.iter().map(|(_, value)| *value).collect();
    format!(
        "insert into {} ({}) values ({});",
        full(of),
        columns.join(", "),
        values.join(", ")
    )
}

fn update(of: Table, name: &str, value: &str) -> String {
    format!(
        "update {} set {} = {value};",
        full(of),
        sql_column(of, name)
    )
}

/// Creates a platform with such names for the database, the role, the schema, tables, columns and
/// the publication. Returns the publication's name.
async fn prepare() -> (TestApp, String) {
    let mut app = TestApp::prepare().await;
    let role = format!(r#"{} ro"le@:/?#%é"#, app.name);
    let quoted_role = quote_identifier(&role);
    let owner = app.source().await;

    run_sql(
        &owner,
        &format!("create role {quoted_role} login replication password 'x'"),
    )
    .await;

    rename_all(&owner, &quoted_role).await;
    let database = format!(r#"{} plat"form.?&=é"#, app.name);

    drop(owner);
    let admin = postgres::connect(&app.server.url("postgres"))
        .await
        .unwrap();
    let rename = format!(
        "alter database {}_platform rename to {}",
        app.name,
        quote_identifier(&database)
    );

    crate::support::eventually("the database to be unused", async || {
        admin.batch_execute(&rename).await.ok()
    })
    .await;
    let grant = format!(
        "grant create on database {} to {quoted_role}",
        quote_identifier(&database)
    );

    run_sql(&admin, &grant).await;
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();

    app.source_url = format!(
        "postgres://{}:x@127.0.0.1:{}/{}",
        encode(&role),
        app.server.port(),
        encode(&database)
    );

    let url = app.source_url.clone();
    let slot = format!("{}_{}", app.name, "s".repeat(63))[..63].to_owned();
    let publication = cut(format!(r#"{} "pub".é; drop table x;--"#, app.name));

    app.set("source.url", &url)
        .set("source.slot", &slot)
        .set("source.publication", &publication);
    app.set("source.replica_identity", "index");
    map_all(&mut app);

    (app, publication)
}

/// Inserts rows that raise no events.
fn rows() -> String {
    let rows = [
        insert(Table::AppUser, &[("id", "1"), ("email", "'a@example.com'")]),
        insert(
            Table::Label,
            &[("id", "2"), ("user_id", "1"), ("name", "'L'")],
        ),
        insert(
            Table::Release,
            &[
                ("id", "3"),
                ("label_id", "2"),
                ("title", "'T'"),
                ("review_status", "'draft'"),
                ("delivery_status", "'x'"),
            ],
        ),
        insert(Table::Outlet, &[("id", "4"), ("name", "'Outlet'")]),
        insert(
            Table::DistroQueue,
            &[
                ("id", "5"),
                ("release_id", "3"),
                ("outlet_id", "4"),
                ("status", "'batched'"),
            ],
        ),
        insert(
            Table::Track,
            &[
                ("id", "6"),
                ("release_id", "3"),
                ("isrc", "'I'"),
                ("title", "'t'"),
            ],
        ),
        insert(
            Table::TranscoderQueue,
            &[("id", "7"), ("track_id", "6"), ("status", "'running'")],
        ),
        insert(
            Table::Payment,
            &[
                ("id", "8"),
                ("user_id", "1"),
                ("invoice_number", "'N'"),
                ("amount", "1"),
                ("total_due_usd", "1"),
                ("status", "'draft'"),
            ],
        ),
    ];
    rows.concat()
}

#[tokio::test]
async fn every_name_is_quoted() {
    let (mut app, publication) = prepare().await;
    let printed = app.walhook_ok(&["setup", "--print"]).await;

    assert!(printed.contains(&full(Table::Payment)), "{printed}");
    app.setup().await;
    assert!(
        app.walhook_ok(&["setup"])
            .await
            .contains("everything is set up")
    );
    app.walhook_ok(&["check"]).await;
    app.run().await;

    let receiver = Receiver::start().await;
    let events = [
        "payment.statement_ready",
        "release.review.status_changed",
        "delivery.completed",
        "transcode.completed",
    ];

    app.api("1")
        .await
        .create_webhook(&receiver.url("/"), &events)
        .await;
    let platform = app.source().await;

    platform.batch_execute(&rows()).await.unwrap();

    // After the restart, everything but the changed row is looked up.
    app.restart().await;
    let moves = [
        update(Table::Release, "review_status", "'approved'"),
        update(Table::DistroQueue, "status", "'complete'"),
        update(Table::TranscoderQueue, "status", "'complete'"),
        update(Table::Payment, "status", "'ready'"),
    ];

    platform.batch_execute(&moves.concat()).await.unwrap();
    let mut received: Vec<String> = receiver
        .wait_for(4)
        .await
        .iter()
        .map(|request| request.event().to_owned())
        .collect();

    received.sort();
    let mut wanted = events.map(str::to_owned);

    wanted.sort();
    assert_eq!(received, wanted);
    assert!(app.stop().await.success());

    let torn = app.walhook_ok(&["teardown", "--yes"]).await;
    assert!(
        torn.contains(&format!("publication {publication}: dropped")),
        "{torn}"
    );
    assert!(
        app.walhook_ok(&["teardown", "--yes"])
            .await
            .contains("nothing is left to remove")
    );
}
