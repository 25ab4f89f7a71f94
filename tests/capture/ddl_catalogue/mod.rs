//! A catalogue of the platform's DDL: each statement on a captured table under a running process,
//! on every installed PostgreSQL version, with each way of capture. Afterwards the platform's
//! statements succeed, other tables are captured, and nothing is lost without a report, or the case
//! says what happens instead.

mod cases;
mod writes;

use std::time::{Duration, Instant};

use tokio_postgres::Client;
use walhook::postgres;
use walhook::private_postgres::Options;

use self::cases::{CASES, Case, Expected, Setup};
use self::writes::{Shape, expected_ids, shape, writes};
use crate::support::versions;
use crate::support::{DEADLINE, POLL, TestApp, eventually, one};

/// How long a statement is retried: several times the time after which the running process has
/// repaired a table.
const RETRIES: Duration = Duration::from_secs(3);
/// For how long readiness must name a reason without any progress of other tables.
const STANDSTILL: Duration = Duration::from_secs(2);
/// The ids of one case's rows.
const ROWS: i64 = 1_000;
/// The partitions that exist from the start have ids below this.
const NEW_PARTITIONS: i64 = 1_000_000;

const TABLES: &str = "
    alter table payment add note text;
    create unique index payment_invoice on payment (id, invoice_number);
    do $$ declare part record; begin
        for part in select * from (values ('transcoder_queue', ', primary key (id)'), ('distro_queue', '')) as found (name, key)
        loop
            execute format('alter table %1$I rename to %1$s_before;
                create table %1$I (like %1$s_before including defaults %2$s) partition by range (id);
                create table %1$s_old partition of %1$I for values from (minvalue) to (0);
                create table %1$s_now partition of %1$I for values from (0) to (1000000);
                drop table %1$s_before cascade', part.name, part.key);
        end loop;
    end $$;
    insert into app_user (id, email) values (1, 'a@example.com');
    insert into label (id, user_id, name) values (1, 1, 'L');
    insert into release (id, label_id, review_status, delivery_status) values (1, 1, 'draft', 'pending');
    insert into track (id, release_id, isrc, title) values (1, 1, 'I', 'T')";

/// A role that owns the tables, and is no superuser.
const ROLE: &str = "
    create role {role} login replication; create role {role}_other;
    alter database {database} owner to {role};
    do $$ declare name regclass; begin
        for name in select oid from pg_class where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') loop
            execute format('alter table %s owner to {role}', name);
        end loop;
    end $$";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Works,
    Repaired,
    Refused,
    Lost,
    Reported,
    Waits,
    Rejects,
    /// Changes are lost or raised twice, and nothing reports it.
    Silent,
}

/// What followed from a statement.
struct Outcome {
    kind: Kind,
    /// Errors of the platform's statements, readiness, and the failures that `walhook check`
    /// prints.
    text: String,
}

impl Outcome {
    fn is(&self, expected: Expected) -> bool {
        let (kind, text) = match expected {
            Expected::Works => (Kind::Works, ""),
            Expected::Repaired => (Kind::Repaired, ""),
            Expected::Refused(text) => (Kind::Refused, text),
            Expected::Lost(text) => (Kind::Lost, text),
            Expected::Reported(text) => (Kind::Reported, text),
            Expected::Waits(text) => (Kind::Waits, text),
            Expected::Rejects(text) => (Kind::Rejects, text),
        };
        self.kind == kind && self.text.contains(text)
    }
}

/// A running process and the platform that it captures from.
struct Catalogue {
    app: TestApp,
    platform: Client,
    store: Client,
    version: u32,
    setup: Setup,
    /// The number of changes of the witness: a release, whose table no case changes.
    witnessed: i64,
}

impl Catalogue {
    async fn start(version: u32, setup: Setup) -> Option<Catalogue> {
        let programs = versions::exactly(version)?;

        let mut app = TestApp::prepare_alone(Options {
            programs: Some(&programs),
            ..Options::default()
        })
        .await;
        let platform = app.source().await;
        let role = format!("{}_role", app.name);
        let created = ROLE
            .replace("{role}", &role)
            .replace("{database}", &format!("{}_platform", app.name));

        execute(&platform, &format!("{TABLES}; {created}"))
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        let (capture, identity) = match setup {
            Setup::Full => ("wal", "full"),
            Setup::Index => ("wal", "index"),
            Setup::Trigger => ("trigger", "full"),
        };

        let url = app.source_url.replacen("postgres@", &format!("{role}@"), 1);
        app.set("source.url", &url)
            .set("source.capture", capture)
            .set("source.replica_identity", identity);
        app.set("source.heartbeat", "100ms")
            .set("source.poll_interval", "20ms");
        app.setup().await;

        let store = app.store().await;
        let mut catalogue = Catalogue {
            app,
            platform,
            store,
            version,
            setup,
            witnessed: 0,
        };

        execute(&catalogue.platform, &format!("set role {role}"))
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        catalogue.run().await;

        Some(catalogue)
    }

    async fn run(&mut self) {
        self.app.run_with(&["--roles", "capture"]).await;
    }

    async fn number(&self, query: &str) -> i64 {
        self.store
            .query_one(query, &[])
            .await
            .unwrap_or_else(|error| panic!("{query}: {error:?}"))
            .get(0)
    }

    /// Runs a case and restores what it has changed. Returns what followed.
    async fn attempt(&mut self, case: &Case, number: i64) -> Outcome {
        let shape = shape(case.subject);
        let creates = case
            .ddl
            .iter()
            .any(|statement| statement.contains("{from}"));
        let from = number * ROWS + if creates { NEW_PARTITIONS } else { 0 };

        let mut outcome = match self.execute_all(case.ddl, from).await {
            Ok(()) => self.write(case, &shape, from).await,
            Err(error) => Outcome {
                kind: Kind::Refused,
                text: error,
            },
        };

        let repaired = self.restore(case, from, &outcome).await;
        let is_repaired = match repaired {
            Ok(is_repaired) => is_repaired,
            Err(error) => {
                outcome = Outcome {
                    kind: Kind::Rejects,
                    text: format!("{}\nremedy: {error}", outcome.text),
                };
                true
            }
        };

        if matches!(outcome.kind, Kind::Refused | Kind::Rejects) {
            return outcome;
        }

        let mut wanted = expected_ids(from, self.version);

        if is_repaired {
            // A repair compares states: it cannot find what happened to rows that are gone.
            let query = format!("select id::bigint from {} where id = any($1)", shape.table);
            wanted = self
                .platform
                .query(&query, &[&wanted])
                .await
                .unwrap()
                .iter()
                .map(|row| row.get(0))
                .collect();
        }

        let missing = missing(&wanted, &self.raised(&shape, from).await);
        if !missing.is_empty() {
            outcome = Outcome {
                kind: Kind::Silent,
                text: format!(
                    "{}\nafter the remedy, no events of {missing:?}",
                    outcome.text
                ),
            };
        }

        outcome
    }

    async fn execute_all(&self, statements: &[&str], from: i64) -> Result<(), String> {
        let role = format!("{}_role", self.app.name);

        for statement in statements {
            let statement = statement.replace("{role}", &role);
            let statement = statement
                .replace("{from}", &from.to_string())
                .replace("{to}", &(from + ROWS).to_string());
            execute(&self.platform, &statement).await?;
        }

        Ok(())
    }

    /// Executes the platform's statements, and judges what capture has made of them.
    async fn write(&mut self, case: &Case, shape: &Shape, from: i64) -> Outcome {
        if let Some(settled) = case.settled.filter(|_| self.setup != Setup::Trigger) {
            let is_settled = async || one::<bool>(&self.platform, settled).await.then_some(());
            eventually(case.name, is_settled).await;
        }

        let mut errors = Vec::new();
        let mut is_rejected = false;

        for write in writes(
            shape,
            case.target.unwrap_or(shape.table),
            from,
            self.version,
        ) {
            let started_at = Instant::now();

            while let Err(error) = write.execute(&self.platform).await {
                let error = format!("{}: {}", write.name(), postgres::describe(&error));
                if errors.last() != Some(&error) {
                    errors.push(error);
                }

                if is_rejected || started_at.elapsed() > RETRIES {
                    is_rejected = true;
                    break;
                }

                tokio::time::sleep(POLL).await;
            }
        }

        let standstill = self.witness().await;
        let raised = self.raised(shape, from).await;
        let missing = missing(&expected_ids(from, self.version), &raised);
        let is_doubled = raised.windows(2).any(|pair| pair[0] == pair[1]);

        if !missing.is_empty() {
            self.wait_until_reported().await;
        }

        let check = self.app.walhook(&["check"]).await;
        let check = String::from_utf8(check.stdout).expect("UTF-8");
        let failures: Vec<&str> = check
            .lines()
            .filter(|line| line.starts_with("fail"))
            .collect();
        let waits = standstill.is_some();
        let reasons = standstill.unwrap_or(self.reasons().await);
        let is_reported = !reasons.is_empty() && !failures.is_empty();

        let kind = if is_rejected {
            Kind::Rejects
        } else if waits {
            Kind::Waits
        } else if is_doubled || (!missing.is_empty() && !is_reported) {
            Kind::Silent
        } else if !missing.is_empty() {
            Kind::Lost
        } else if !reasons.is_empty() || !failures.is_empty() {
            Kind::Reported
        } else if errors.is_empty() {
            Kind::Works
        } else {
            Kind::Repaired
        };

        let text = [
            errors,
            reasons,
            failures.into_iter().map(str::to_owned).collect(),
        ]
        .concat()
        .join("\n");

        let text = if missing.is_empty() {
            text
        } else {
            format!("{text}\nno events of {missing:?}")
        };

        Outcome { kind, text }
    }

    /// Changes the witness. Returns none when its event is raised, or why capture waits.
    async fn witness(&mut self) -> Option<Vec<String>> {
        self.witnessed += 1;
        let status = if self.witnessed % 2 == 0 {
            "draft"
        } else {
            "approved"
        };

        let update = format!("update release set review_status = '{status}' where id = 1");
        execute(&self.platform, &update)
            .await
            .unwrap_or_else(|error| panic!("{error}"));

        let started_at = Instant::now();
        let mut waiting_since = None;

        loop {
            if self.is_witnessed().await {
                return None;
            }

            let reasons = self.reasons().await;
            let waits = reasons.iter().any(|reason| {
                reason.starts_with("capture: ") && !reason.contains("cannot be read now")
            });

            // Each retry is healthy for a moment.
            if waits && waiting_since.get_or_insert_with(Instant::now).elapsed() > STANDSTILL {
                return Some(reasons);
            }

            assert!(
                started_at.elapsed() < DEADLINE,
                "the witness's event is not raised, and readiness names no reason"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns why the process is not ready.
    async fn reasons(&mut self) -> Vec<String> {
        let readiness = self.app.sidecar().readiness().await;
        let answer: Option<serde_json::Value> =
            readiness.and_then(|(_, text)| serde_json::from_str(&text).ok());
        let reasons = answer
            .as_ref()
            .and_then(|answer| answer["reasons"].as_array());

        reasons
            .into_iter()
            .flatten()
            .filter_map(|reason| reason.as_str())
            .map(str::to_owned)
            .collect()
    }

    async fn is_witnessed(&self) -> bool {
        let query =
            "select count(*) from walhook.event where kind = 'release.review.status_changed'";
        self.number(query).await == self.witnessed
    }

    async fn wait_until_reported(&mut self) {
        let started_at = Instant::now();

        while self.reasons().await.is_empty() {
            if started_at.elapsed() > RETRIES {
                return;
            }

            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns the ids of the case's rows of which events were raised, in their order.
    async fn raised(&self, shape: &Shape, from: i64) -> Vec<i64> {
        let id = format!("(data ->> '{}')::bigint", shape.id);
        let query = format!(
            "select {id} from walhook.event where kind = $1 and {id} between $2 and $2 + {ROWS} - 1 order by 1"
        );

        self.store
            .query(&query, &[&shape.kind, &from])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect()
    }

    /// Undoes the DDL, runs what the report names, and waits until the process is ready again.
    /// Returns whether there was a gap.
    async fn restore(&mut self, case: &Case, from: i64, outcome: &Outcome) -> Result<bool, String> {
        let is_harmless = matches!(outcome.kind, Kind::Works | Kind::Refused);
        let creates_tables = case
            .undo
            .iter()
            .any(|statement| statement.contains("table ") && statement.contains("_new"));
        let remedy = case.remedy.filter(|_| outcome.kind == Kind::Waits);
        let has_gap = self
            .number("select count(*) from walhook.gap where repaired_at is null")
            .await
            > 0;
        let stops = has_gap || remedy.is_some();

        if stops {
            assert!(self.app.stop().await.success());
        }

        let mut done = Ok(());

        if outcome.kind != Kind::Refused {
            done = self.execute_all(case.undo, from).await;
        }

        if !is_harmless || creates_tables || case.subject != cases::Subject::Payment {
            done = done.and(self.command("setup").await);
        }

        if let Some((key, value)) = remedy {
            self.app.set(key, value);
        }

        if has_gap {
            done = done.and(self.command("repair").await);
        }

        if stops {
            self.run().await;
        }

        self.app.sidecar().wait_until_ready().await;
        eventually("the witness's event", async || {
            self.is_witnessed().await.then_some(())
        })
        .await;

        done.map(|()| has_gap)
    }

    async fn command(&self, command: &str) -> Result<(), String> {
        let output = self.app.walhook(&[command]).await;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "walhook {command}: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }
}

async fn execute(client: &Client, statement: &str) -> Result<(), String> {
    let result = client.batch_execute(statement).await;
    result.map_err(|error| format!("{statement}: {}", postgres::describe(&error)))
}

fn missing(wanted: &[i64], raised: &[i64]) -> Vec<i64> {
    wanted
        .iter()
        .copied()
        .filter(|id| !raised.contains(id))
        .collect()
}

async fn assert_catalogue(version: u32, setup: Setup) {
    // `make soak` selects one version after another.
    if versions::selected().is_some_and(|selected| selected != version) {
        return;
    }

    let Some(mut catalogue) = Catalogue::start(version, setup).await else {
        return;
    };

    let started_at = Instant::now();
    let mut differing = Vec::new();

    for (number, case) in CASES
        .iter()
        .enumerate()
        .filter(|(_, case)| case.since <= version)
    {
        let case_at = Instant::now();
        let outcome = catalogue.attempt(case, number as i64 + 1).await;

        println!(
            "{version} {setup:?} {:?} {}: {:?}",
            case_at.elapsed(),
            case.name,
            outcome.kind
        );

        let expected = case.expected(version, setup);
        if !outcome.is(expected) {
            differing.push(format!(
                "{}: {:?} instead of {expected:?}\n{}",
                case.name, outcome.kind, outcome.text
            ));
        }
    }

    println!(
        "PostgreSQL {version}, {setup:?}: {:?}",
        started_at.elapsed()
    );
    assert!(
        differing.is_empty(),
        "PostgreSQL {version}, {setup:?}:\n\n{}",
        differing.join("\n\n")
    );
}

macro_rules! catalogue {
    ($($(#[$attribute:meta])? $test:ident: $version:literal $setup:ident,)+) => {
        $(
            $(#[$attribute])?
            #[tokio::test]
            async fn $test() {
                assert_catalogue($version, Setup::$setup).await;
            }
        )+
    };
}

catalogue! {
    #[ignore = "for `make soak`"] version_14_with_full_identity: 14 Full,
    #[ignore = "for `make soak`"] version_14_with_an_index: 14 Index,
    #[ignore = "for `make soak`"] version_14_with_triggers: 14 Trigger,
    #[ignore = "for `make soak`"] version_15_with_full_identity: 15 Full,
    #[ignore = "for `make soak`"] version_15_with_an_index: 15 Index,
    #[ignore = "for `make soak`"] version_15_with_triggers: 15 Trigger,
    #[ignore = "for `make soak`"] version_16_with_full_identity: 16 Full,
    #[ignore = "for `make soak`"] version_16_with_an_index: 16 Index,
    #[ignore = "for `make soak`"] version_16_with_triggers: 16 Trigger,
    #[ignore = "for `make soak`"] version_17_with_full_identity: 17 Full,
    #[ignore = "for `make soak`"] version_17_with_an_index: 17 Index,
    #[ignore = "for `make soak`"] version_17_with_triggers: 17 Trigger,
    version_18_with_full_identity: 18 Full,
    version_18_with_an_index: 18 Index,
    version_18_with_triggers: 18 Trigger,
}
