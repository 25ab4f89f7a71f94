//! Walhook's role owns nothing of the platform: what it lacks, `walhook check` reports, `--print`
//! prints and a DBA runs, until nothing is missing.

use crate::support::{TestApp, run_sql};
use tokio_postgres::Client;

const REMEDY: &str = "let a DBA run what `walhook setup --print` prints";
const NOTHING: &str = "-- Nothing is missing that only another role can change.";

struct Scene {
    app: TestApp,
    /// A superuser on the platform's database.
    dba: Client,
    /// The owner of the platform's database and tables.
    owner: String,
}

impl Scene {
    /// A platform whose labels are in another schema. Walhook's role can connect and owns the
    /// store.
    async fn prepare() -> Scene {
        let mut app = TestApp::prepare().await;
        let dba = app.source().await;
        let owner = format!("{}_owner", app.name);
        let role = format!("{}_role", app.name);

        let statements = format!(
            "create role {owner}; create role {role} login;
             alter database {0}_platform owner to {owner}; alter database {0}_store owner to {role};
             create schema catalog authorization {owner}; alter table label set schema catalog;
             alter table app_user add password text; alter table payment add iban text;
             do $$ declare name text; begin
                 for name in select oid::regclass from pg_class
                     where relkind = 'r' and relnamespace in ('public'::regnamespace, 'catalog'::regnamespace)
                 loop execute format('alter table %s owner to {owner}', name); end loop;
             end $$",
            app.name
        );
        run_sql(&dba, &statements).await;

        for key in ["source.url", "store.url"] {
            let url = app.setting(key).replace("postgres@", &format!("{role}@"));
            app.set(key, &url);
        }

        app.set("source.tables.label.table", "catalog.label");
        app.set("source.tables.label.columns.name", "name");
        app.set("source.tables.payment.absent", "true");
        Scene { app, dba, owner }
    }

    /// Runs statements as the owner of the platform.
    async fn platform(&self, statements: &str) {
        let statements = format!("set role {}; {statements}; reset role", self.owner);
        run_sql(&self.dba, &statements).await;
    }

    /// Returns the failures and warnings of `walhook check`.
    async fn problems(&self) -> Vec<String> {
        let output = self.app.walhook(&["check"]).await;
        let text = String::from_utf8(output.stdout).unwrap();
        let problems = text.lines().filter(|line| !line.starts_with("ok "));
        problems.map(str::to_owned).collect()
    }

    /// Runs a printed script as a DBA does: each line by itself, or a transaction as a whole, with
    /// the rights of the role that the comment names.
    async fn paste(&self, script: &str) {
        let mut transaction: Option<String> = None;

        for line in script.lines() {
            if let Some(roles) = line.strip_prefix("-- With the rights of ") {
                let roles = roles.trim_end_matches(':');
                let roles: Vec<&str> = roles
                    .split(" and ")
                    .filter(|role| *role != "create on the database")
                    .collect();
                let set = match roles[..] {
                    [role] if role == self.owner => format!("set role {role}"),
                    _ => "reset role".to_owned(),
                };
                run_sql(&self.dba, &set).await;
            } else if line == "begin;" {
                transaction = Some(String::new());
            }

            match &mut transaction {
                Some(text) => {
                    text.push_str(line);
                    text.push('\n');
                }
                None => run_sql(&self.dba, line).await,
            }

            if line == "commit;" {
                let text = transaction.take().expect("it began");
                run_sql(&self.dba, &text).await;
            }
        }

        run_sql(&self.dba, "reset role").await;
    }

    /// Walks the loop: `walhook check` asks for a DBA, who runs what is printed. Then only `walhook
    /// setup` is left to do, and after it nothing.
    async fn settle(&self, missing: &[&str]) {
        let problems = self.problems().await;
        let asked: Vec<&String> = problems
            .iter()
            .filter(|line| line.contains(REMEDY))
            .collect();
        for subject in missing {
            assert!(
                asked.iter().any(|line| line.contains(subject)),
                "{subject} in {problems:#?}"
            );
        }

        let printed = self.app.walhook_ok(&["setup", "--print"]).await;
        self.paste(&printed).await;

        let left = self.problems().await;
        let is_left = |line: &&String| {
            line.contains("--print`") && !line.contains("after `walhook setup`")
                || line.starts_with("fail") && !line.contains("run `walhook setup`")
        };
        let left: Vec<&String> = left.iter().filter(is_left).collect();
        assert!(left.is_empty(), "{left:#?} after\n{printed}");

        self.app.setup().await;

        // Triggers that the role has created fire always if a table's owner lets them.
        let ordinary = self.problems().await;
        if ordinary.iter().any(|line| line.contains(REMEDY)) {
            let printed = self.app.walhook_ok(&["setup", "--print"]).await;
            assert!(printed.contains("enable always trigger"), "{printed}");
            self.paste(&printed).await;
        }

        let check = self.app.walhook_ok(&["check"]).await;
        assert!(!check.contains("--print"), "{check}");
        let printed = self.app.walhook_ok(&["setup", "--print"]).await;
        assert!(printed.starts_with(NOTHING), "{printed}");
        let again = self.app.walhook_ok(&["setup"]).await;
        assert_eq!(again.trim(), "everything is set up");
    }

    /// Returns what the role may read that it need not.
    async fn readable(&self, columns: &[&str]) -> Vec<String> {
        let readable = "select name from unnest($2::text[]) as name, lateral (
                select split_part(name, ' ', 1)::regclass as relation, split_part(name, ' ', 2) as column
            ) given
            where has_column_privilege($1, given.relation, given.column, 'select')";
        let role = format!("{}_role", self.app.name);
        let rows = self.dba.query(readable, &[&role, &columns]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Captures, explains and repairs, with no more than what was granted.
    async fn work(&mut self) {
        let insert = "insert into app_user (id, email, password) values (1, 'user@example.com', 'secret') on conflict do nothing;
            insert into payment (id, user_id, invoice_number, amount, total_due_usd, status) values ($id, 1, 'A', 1, 1, 'ready')";
        let events = "select count(*) from walhook.event where kind = 'payment.statement_ready'";

        run_sql(&self.dba, &insert.replace("$id", "1")).await;
        self.app.run().await;
        self.app.wait_for_count(events, 1).await;
        assert!(self.app.stop().await.success());

        let explained = self.app.walhook_ok(&["init", "--explain"]).await;
        assert!(explained.contains("payment.statement_ready"), "{explained}");

        // As if its insertion had been missed.
        run_sql(&self.app.store().await, "delete from walhook.last_seen").await;
        let repaired = self.app.walhook_ok(&["repair", "--force"]).await;
        assert!(repaired.contains("payment.statement_ready"), "{repaired}");
    }
}

async fn walk(configure: impl FnOnce(&mut TestApp)) {
    let mut scene = Scene::prepare().await;
    configure(&mut scene.app);

    let explained = scene.app.walhook(&["init", "--explain"]).await;
    let explained = String::from_utf8(explained.stdout).unwrap();
    let grant = "grant select (\"id\", \"user_id\", \"name\") on \"catalog\".\"label\" to";
    assert!(explained.contains(grant), "{explained}");

    scene.settle(&["table catalog.label privilege"]).await;

    // One more table is mapped.
    scene.app.set("source.tables.payment.absent", "false");
    let by_triggers = scene.app.setting("source.capture") == "trigger";
    let missing = match by_triggers {
        true => "table public.payment trigger privilege".to_owned(),
        false => format!("publication {}: lacks public.payment", scene.app.name),
    };
    scene.settle(&[&missing]).await;

    scene.work().await;
    let secret = ["app_user password", "payment iban"];
    assert_eq!(scene.readable(&secret).await, [""; 0]);

    // It is dropped and created again, with partitions.
    let recreated = "alter table payment rename to earlier;
        create table payment (like earlier, primary key (id)) partition by hash (id);
        create table payment_0 partition of payment for values with (modulus 2, remainder 0);
        create table payment_1 partition of payment for values with (modulus 2, remainder 1);
        drop table earlier";
    scene.platform(recreated).await;
    scene.settle(&[&missing]).await;

    // Columns and rows come from other tables.
    let others = "create schema billing; create table billing.currency (id bigint primary key, code text, secret text);
        create table billing.\"Stores\" (id bigint primary key, name text, secret text); create table billing.region (id bigint)";
    scene.platform(others).await;
    let computed =
        "(select c.code from billing.currency c where c.id = this.id) /* not billing.region */";
    let lookup = "select s.id, s.name from billing.\"Stores\" s where s.id = any($1::bigint[])";
    scene
        .app
        .set("source.tables.payment.computed.currency", computed)
        .set("source.lookups.outlet", lookup);
    let own = ["source.tables.payment.computed", "source.lookups.outlet"];
    scene.settle(&own).await;

    let columns = [
        "currency id",
        "currency secret",
        "\"Stores\" name",
        "\"Stores\" secret",
        "region id",
    ];
    let columns = columns.map(|column| format!("billing.{column}"));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let readable = scene.readable(&columns).await;
    assert_eq!(readable, ["billing.currency id", "billing.\"Stores\" name"]);

    // Rows are hidden.
    scene
        .platform("alter table track enable row level security")
        .await;
    scene.settle(&["table public.track row security"]).await;

    // All is removed, and set up again.
    let printed = scene.app.walhook_ok(&["teardown", "--print"]).await;
    // A DBA has set the replica identities.
    assert!(printed.contains("`walhook teardown --yes`"), "{printed}");
    let unrecorded = ["alter table", "drop index", "revoke"]
        .iter()
        .fold(printed, |text, first| {
            text.replace(&format!("-- {first}"), first)
        });
    scene.paste(&unrecorded).await;
    scene.app.walhook_ok(&["teardown", "--yes"]).await;

    let granted = ["app_user email", "payment status", "catalog.label user_id"];
    assert_eq!(scene.readable(&granted).await, [""; 0]);
    let left = "select count(*) from (select from pg_publication union all select from pg_replication_slots where slot_name = $1
        union all select from pg_class where relname like 'walhook%' or relreplident = 'f' union all select from pg_namespace where nspname like 'walhook%') found";
    let row = scene.dba.query_one(left, &[&scene.app.name]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), 0);

    let missing = if by_triggers {
        "outbox privilege"
    } else {
        "publication"
    };
    scene.settle(&[missing]).await;
}

#[tokio::test]
async fn a_dba_runs_what_is_printed_for_capture_from_the_wal() {
    walk(|app| _ = app.set("source.capture", "wal")).await;
}

#[tokio::test]
async fn a_dba_runs_what_is_printed_for_identity_indexes() {
    walk(|app| {
        app.set("source.capture", "wal")
            .set("source.replica_identity", "index");
    })
    .await;
}

#[tokio::test]
async fn a_dba_runs_what_is_printed_for_capture_by_triggers() {
    walk(|app| {
        app.set("source.capture", "trigger")
            .set("source.poll_interval", "20ms");
    })
    .await;
}

#[tokio::test]
async fn without_a_connection_the_first_statements_are_named() {
    let mut app = TestApp::prepare().await;
    let url = app.source_url.replace("postgres@", "nobody@");
    app.set("source.url", &url);

    let output = app.walhook(&["setup", "--print"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty(), "{output:?}");

    let setup = app.walhook(&["setup"]).await;
    let said = String::from_utf8(setup.stderr).unwrap();
    let expected = "walhook: the primary: role \"nobody\" does not exist (28000)";
    assert_eq!(said.trim(), expected, "once");

    let error = String::from_utf8(output.stderr).unwrap();
    let named = [
        "role \"nobody\" does not exist".to_owned(),
        "create role \"nobody\" login password '…'".to_owned(),
        format!(
            "grant connect on database \"{}_platform\" to \"nobody\"",
            app.name
        ),
    ];
    for named in named {
        assert!(error.contains(&named), "{named} in {error}");
    }
}
