//! Cells: several stores divide the events of one log by the shards of users.

use std::collections::BTreeMap;

use serde_json::json;
use tokio_postgres::Client;
use walhook::domain::cell::Shard;
use walhook::domain::event::UserId;
use walhook::postgres;
use walhook::private_postgres::{Options, PrivatePostgres, StopMode};

use super::{PAYMENT, own_store, use_store};
use crate::support::{Answer, Api, Receiver, TestApp, eventually, hs256_token, one, run_sql};

/// A log with the process that writes it, and the cells `a` and `b`, each with half of the shards.
struct Cells {
    relay: TestApp,
    a: TestApp,
    b: TestApp,
    server_of_b: PrivatePostgres,
    /// Users of `a`, then as many of `b`.
    users: Vec<i64>,
    receiver: Receiver,
    payments: Vec<i64>,
}

fn shard(user: i64) -> u16 {
    Shard::of(&UserId(user.to_string().into())).0
}

/// Creates `count` users of shards below 2,048, and as many of others.
async fn users_of_both_halves(relay: &TestApp, count: usize) -> Vec<i64> {
    let platform = relay.platform().await;
    let (mut lower, mut upper) = (Vec::new(), Vec::new());

    while lower.len() < count || upper.len() < count {
        let user = platform.user(&[]).await;
        let half = match shard(user) < 2_048 {
            true => &mut lower,
            false => &mut upper,
        };
        if half.len() < count {
            half.push(user);
        }
    }

    [lower, upper].concat()
}

async fn store_id(store: &Client) -> uuid::Uuid {
    one(store, "select store_id from walhook.event_sequence").await
}

/// A store that reads the log of `relay` as a cell, and is set up.
async fn prepare_cell(relay: &TestApp, name: &str) -> TestApp {
    prepare_cell_of(relay, TestApp::prepare().await, name).await
}

async fn prepare_cell_of(relay: &TestApp, mut cell: TestApp, name: &str) -> TestApp {
    cell.set("source.url", &relay.source_url)
        .set("source.capture", "log")
        .set("source.log_url", relay.setting("store.url"))
        .set("source.heartbeat", "500ms")
        .set("cells.name", name)
        .set_fast_retries();
    cell.setup().await;
    cell
}

impl Cells {
    async fn start() -> Cells {
        let mut relay = TestApp::prepare().await;
        relay.setup().await;
        relay.run_with(&["--roles", "capture"]).await;

        let a = prepare_cell(&relay, "a").await;
        let mut b = TestApp::prepare().await;
        let server_of_b = own_store(&mut b).await;
        let b = prepare_cell_of(&relay, b, "b").await;
        let row = |name, first, last, id| {
            format!("insert into walhook.cell values ('{name}', {first}, {last}, '{id}', 2);")
        };
        let of_a = row("a", 0, 2_047, store_id(&a.store().await).await);
        let of_b = row("b", 2_048, 4_095, store_id(&b.store().await).await);
        run_sql(&relay.store().await, &format!("{of_a}{of_b}")).await;
        run_sql(&a.store().await, &of_a).await;
        run_sql(&b.store().await, &of_b).await;

        let mut cells = Cells {
            users: users_of_both_halves(&relay, 2).await,
            receiver: Receiver::start().await,
            payments: Vec::new(),
            relay,
            a,
            b,
            server_of_b,
        };
        cells.a.run().await;
        cells.b.run().await;

        for (cell, users) in [(&cells.a, &cells.users[..2]), (&cells.b, &cells.users[2..])] {
            for user in users {
                let api = cell.api(&user.to_string()).await;
                api.create_webhook(&cells.receiver.url("/"), &[PAYMENT])
                    .await;
            }
        }

        cells
    }

    async fn pay(&mut self, count: usize) {
        let platform = self.relay.platform().await;
        for user in &self.users {
            self.payments.extend(platform.payments(*user, count).await);
        }
    }

    /// Waits until both cells have read the whole log and delivered everything. Asserts that each
    /// payment was delivered once.
    async fn assert_delivered_once(&self) {
        self.relay.wait_for_events(self.payments.len()).await;
        let last: i64 = one(
            &self.relay.store().await,
            "select last from walhook.event_sequence",
        )
        .await;

        for cell in [&self.a, &self.b] {
            cell.wait_for_count("select log_number from walhook.checkpoint", last as usize)
                .await;
            cell.wait_for_count("select count(*) from walhook.pending", 0)
                .await;
        }

        assert_eq!(
            deliveries(&self.receiver),
            self.payments.iter().map(|payment| (*payment, 1)).collect()
        );
    }
}

/// The number of deliveries of each payment.
fn deliveries(receiver: &Receiver) -> BTreeMap<i64, usize> {
    let mut seen = std::collections::HashSet::new();
    let mut deliveries = BTreeMap::new();

    for request in receiver.requests() {
        if seen.insert(request.delivery().to_owned()) {
            let payment = request.data()["payment_request_id"].as_i64().unwrap();
            *deliveries.entry(payment).or_default() += 1;
        }
    }

    deliveries
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_event_is_stored_and_delivered_by_the_cell_of_its_user() {
    let mut cells = Cells::start().await;
    cells.pay(20).await;
    cells.assert_delivered_once().await;

    for (cell, users) in [(&cells.a, &cells.users[..2]), (&cells.b, &cells.users[2..])] {
        let store = cell.store().await;
        let stored: Vec<String> = one(
            &store,
            "select array_agg(distinct user_id order by user_id) from walhook.event",
        )
        .await;
        let mut users: Vec<String> = users.iter().map(i64::to_string).collect();
        users.sort();
        assert_eq!(stored, users);

        let shard: i32 = one(&store, &format!("select walhook.shard('{}')", users[0])).await;
        let user = UserId(users[0].as_str().into());
        assert_eq!(shard, i32::from(Shard::of(&user).0));
    }

    // One cell is dead, then the other, and finally the log loses its last events and gets them
    // again.
    cells.b.kill().await;
    cells.pay(5).await;
    cells.b.run().await;
    cells.a.kill().await;
    cells.pay(5).await;
    cells.a.run().await;
    cells.assert_delivered_once().await;

    cells.relay.kill().await;
    let log = cells.relay.store().await;
    run_sql(
        &log,
        "create table lost as select * from walhook.event where sequence > 100;
         delete from walhook.event where sequence > 100;
         update walhook.event_sequence set last = 100",
    )
    .await;

    for cell in [&mut cells.a, &mut cells.b] {
        cell.sidecar()
            .wait_for_metric("walhook_log_lost_events_total", 10.0)
            .await;
    }

    run_sql(
        &log,
        "insert into walhook.event select * from lost; update walhook.event_sequence set last = 120",
    )
    .await;
    cells.relay.run_with(&["--roles", "capture"]).await;
    cells.pay(5).await;
    cells.assert_delivered_once().await;
}

/// Owners are found by the process that writes the log, as of the change: cells only divide.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_that_changes_hands_while_all_lag_has_one_tenant_for_each_event() {
    const EVENT: &str = "distribution.outlet.status_changed";
    let mut cells = Cells::start().await;
    let (former, owner) = (cells.users[0], cells.users[2]);
    for (cell, user) in [(&cells.a, former), (&cells.b, owner)] {
        let api = cell.api(&user.to_string()).await;
        let url = cells.receiver.url(&format!("/of/{user}"));
        api.create_webhook(&url, &[EVENT]).await;
    }

    let platform = cells.relay.platform().await;
    let label = platform.label(former).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("O").await;
    let entry = platform.distribution(release, outlet, "scheduled").await;
    cells.relay.kill().await;
    cells.a.kill().await;
    cells.b.kill().await;

    let status =
        |status: &str| format!("update distro_queue set status = '{status}' where id = {entry}");
    let pass = |user: i64| format!("update label set user_id = {user} where id = {label}");
    platform.transaction(&status("complete")).await;
    platform.transaction(&pass(owner)).await;
    platform.transaction(&status("error")).await;
    let back = [pass(former), status("complete"), pass(owner)].join(";");
    platform.transaction(&back).await;
    platform.transaction(&status("error")).await;

    // One cell reads what it can long before the other.
    cells.relay.run_with(&["--roles", "capture"]).await;
    cells.b.run().await;
    platform.transaction(&pass(former)).await;
    cells.pay(1).await;
    cells.a.run().await;

    let log = cells.relay.store().await;
    let paid = cells.payments.len() as i64;
    eventually("all payments in the log", async || {
        let count = format!("select count(*) from walhook.event where kind = '{PAYMENT}'");
        (one::<i64>(&log, &count).await == paid).then_some(())
    })
    .await;
    let last: i64 = one(&log, "select last from walhook.event_sequence").await;
    for cell in [&cells.a, &cells.b] {
        cell.wait_for_count("select log_number from walhook.checkpoint", last as usize)
            .await;
        cell.wait_for_count("select count(*) from walhook.pending", 0)
            .await;
    }

    let mut seen = std::collections::HashSet::new();
    let mut received: Vec<(String, String)> = Vec::new();
    for request in cells.receiver.requests() {
        if request.event() == EVENT && seen.insert(request.delivery().to_owned()) {
            let status = request.data()["status"].as_str().unwrap().to_owned();
            received.push((request.path.clone(), status));
        }
    }
    received.sort();

    let of = |user: i64, status: &str| (format!("/of/{user}"), status.to_owned());
    let mut expected = vec![
        of(former, "scheduled"),
        of(former, "complete"),
        of(owner, "error"),
        of(former, "complete"),
        of(owner, "error"),
    ];
    expected.sort();
    assert_eq!(received, expected);
}

async fn refusal(app: &TestApp, arguments: &[&str]) -> String {
    let refused = app.walhook(arguments).await;
    assert!(!refused.status.success(), "{arguments:?} succeeds");
    String::from_utf8_lossy(&refused.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_of_a_wrong_cell_is_refused_with_the_fix() {
    let mut relay = TestApp::prepare().await;
    relay.setup().await;
    relay.run_with(&["--roles", "capture"]).await;
    let mut a = prepare_cell(&relay, "a").await;
    let other = prepare_cell(&relay, "a").await;
    let run = &["run"][..];

    let reason = refusal(&a, run).await;
    assert!(reason.contains("run `walhook cells add a`"), "{reason}");

    let added = a.walhook_ok(&["cells", "add", "a"]).await;
    assert!(added.contains("cell a has the shards 0-4095"), "{added}");
    a.walhook_ok(&["cells", "add", "a"]).await;

    let reason = refusal(&other, &["cells", "add", "a"]).await;
    assert!(reason.contains("cell a has the store"), "{reason}");
    let reason = refusal(&other, run).await;
    assert!(reason.contains("is not cell a yet"), "{reason}");

    a.set("cells.name", "b");
    let reason = refusal(&a, run).await;
    assert!(
        reason.contains("is cell a, and cells.name is b"),
        "{reason}"
    );
    let reason = refusal(&a, &["cells", "add", "b"]).await;
    assert!(
        reason.contains("`walhook cells split a --into b`"),
        "{reason}"
    );

    let mut without = TestApp::prepare().await;
    without
        .set("source.capture", "log")
        .set("source.log_url", relay.setting("store.url"));
    without.setup().await;
    let reason = refusal(&without, run).await;
    assert!(reason.contains("cells.name is not set"), "{reason}");

    // A process notices a raised epoch.
    a.set("cells.name", "a");
    a.run().await;
    let log = relay.store().await;
    run_sql(&log, "update walhook.cell set epoch = 2, last_shard = 2047").await;
    assert!(!a.stop_signalled().await.success());
    let reason = refusal(&a, run).await;
    let differs = "has the shards 0-2047 of epoch 2 in the log store, and 0-4095 of epoch 1";
    assert!(reason.contains(differs), "{reason}");

    let store = a.store().await;
    run_sql(
        &store,
        "update walhook.cell set epoch = 2, last_shard = 2047",
    )
    .await;
    let reason = refusal(&a, run).await;
    assert!(reason.contains("at shard 2048"), "{reason}");

    let reason = refusal(&relay, &["cells", "list"]).await;
    assert!(
        reason.contains("use the configuration of a cell"),
        "{reason}"
    );
    let listed = a.walhook_ok(&["cells", "list", "--json"]).await;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (
            &listed["name"],
            &listed["first_shard"],
            &listed["last_shard"],
            &listed["epoch"]
        ),
        (&"a".into(), &0.into(), &2_047.into(), &2.into())
    );
}

/// A copy of a cell's store is the same cell, by all that the stores know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_that_are_the_same_cell_do_not_both_read_the_log() {
    let mut relay = TestApp::prepare().await;
    relay.setup().await;
    relay.run_with(&["--roles", "capture"]).await;
    let mut a = prepare_cell(&relay, "a").await;
    a.walhook_ok(&["cells", "add", "a"]).await;

    let name = format!("{}_copy", a.name);
    let admin = relay.source().await;
    let copied = format!("create database {name} template {}_store", a.name);
    eventually("a copy of the store", async || {
        admin.batch_execute(&copied).await.ok()
    })
    .await;

    a.run().await;
    let url = a.server.url(&name);
    let mut copy = TestApp::with_databases(
        a.server.clone(),
        name,
        relay.source_url.clone(),
        url.clone(),
    );
    copy.set("source.capture", "log")
        .set("source.log_url", relay.setting("store.url"))
        .set("source.slot", &a.name)
        .set("cells.name", "a");
    use_store(&mut copy, &url);

    let sidecar = copy.spawn(&[]);
    eventually("the copy to be refused", async || {
        let (_, reasons) = sidecar.readiness().await?;
        reasons
            .contains("another process reads the log for cell a")
            .then_some(())
    })
    .await;
    sidecar.kill().await;
}

/// Cell `a` was split into `b`, and then into `c`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_map_or_a_store_from_before_several_splits_is_brought_up_to_date() {
    let relay = TestApp::prepare().await;
    relay.setup().await;
    let cells = [
        ("a", 0, 1_023, 3),
        ("c", 1_024, 2_047, 3),
        ("b", 2_048, 4_095, 2),
    ];
    let mut apps = Vec::new();
    let mut expected = String::new();

    for (name, first, last, epoch) in cells {
        let app = prepare_cell(&relay, name).await;
        let store = app.store().await;
        let id = store_id(&store).await;
        let row =
            format!("insert into walhook.cell values ('{name}', {first}, {last}, '{id}', {epoch})");
        run_sql(&store, &row).await;
        expected += &format!(
            "{}\n",
            json!({ "name": name, "first_shard": first, "last_shard": last, "epoch": epoch, "store": id })
        );
        apps.push(app);
    }

    let [mut a, c, b] = <[TestApp; 3]>::try_from(apps).ok().unwrap();
    let store = a.store().await;
    let whole = format!(
        "insert into walhook.cell values ('a', 0, 4095, '{}', 1)",
        store_id(&store).await
    );
    run_sql(&relay.store().await, &whole).await;
    let reason = refusal(&a, &["run"]).await;
    assert!(reason.contains("Run `walhook cells add`"), "{reason}");

    for (app, name) in [(&b, "b"), (&a, "a")] {
        app.walhook_ok(&["cells", "add", name]).await;
        let reason = refusal(&a, &["run"]).await;
        assert!(reason.contains("run `walhook cells add"), "{reason}");
    }
    c.walhook_ok(&["cells", "add", "c"]).await;
    assert_eq!(a.walhook_ok(&["cells", "list", "--json"]).await, expected);
    a.run().await;
    a.stop().await;

    // The store of `a` is from before both splits: it has what belongs to users of others.
    run_sql(
        &store,
        "update walhook.cell set last_shard = 4095, epoch = 1",
    )
    .await;
    let users = users_of_both_halves(&relay, 1).await;
    let moved = users[1].to_string();
    a.walhook_ok(&["token", "create", "--force", "--user", &moved])
        .await;
    a.walhook_ok(&["cells", "add", "a"]).await;
    let tokens = format!("select count(*) from walhook.api_token where user_id = '{moved}'");
    assert_eq!(one::<i64>(&store, &tokens).await, 0);
    assert_eq!(a.walhook_ok(&["cells", "list", "--json"]).await, expected);
    a.run().await;

    // A split of `c` into the map's `b` is too far to be aborted. One whose new name another cell
    // has taken is not.
    let abort = ["cells", "split", "c", "--into", "b", "--abort"];
    let of_b = store_id(&b.store().await).await;
    let halves = format!(
        "update walhook.cell set last_shard = 1535, epoch = 4;
         insert into walhook.cell values ('b', 1536, 2047, '{of_b}', 0)"
    );
    run_sql(&c.store().await, &halves).await;
    let reason = refusal(&c, &abort).await;
    assert!(reason.contains("cell b is in the map already"), "{reason}");
    let other = "update walhook.cell set store_id = walhook.uuid_v7() where name = 'b'";
    run_sql(&c.store().await, other).await;
    let kept = c.walhook_ok(&abort).await;
    assert!(kept.contains("cell c keeps the shards 1024-2047"), "{kept}");
    assert_eq!(c.walhook_ok(&["cells", "list", "--json"]).await, expected);
    c.replica(&[]).await.stop().await;

    // The store of `b` is not that of the map's `b`.
    run_sql(
        &b.store().await,
        "update walhook.cell set first_shard = 0, epoch = 1",
    )
    .await;
    run_sql(
        &relay.store().await,
        "delete from walhook.cell where name = 'b'",
    )
    .await;
    let reason = refusal(&b, &["cells", "add", "b"]).await;
    assert!(reason.contains("cell a has shards of cell b"), "{reason}");
}

async fn promote(server: &PrivatePostgres) {
    let admin = postgres::connect(&server.url("postgres")).await.unwrap();
    run_sql(&admin, "select pg_promote()").await;
}

/// One cell on a server of its own, its process, and a receiver that fails first attempts.
struct Whole {
    relay: TestApp,
    cell: TestApp,
    server: PrivatePostgres,
    users: Vec<i64>,
    receiver: Receiver,
}

impl Whole {
    async fn start() -> Whole {
        let mut relay = TestApp::prepare().await;
        relay.setup().await;
        relay.run_with(&["--roles", "capture"]).await;

        let mut cell = TestApp::prepare().await;
        let server = own_store(&mut cell).await;
        let mut cell = prepare_cell_of(&relay, cell, "a").await;
        let url = cell.store_url.clone();
        cell.set("cells.stores.a", &url)
            .set("delivery.retry_schedule", "2s");
        cell.walhook_ok(&["cells", "add", "a"]).await;
        cell.run().await;

        let receiver = Receiver::start().await;
        let users = users_of_both_halves(&relay, 2).await;
        for user in &users {
            let api = cell.api(&user.to_string()).await;
            api.create_webhook(&receiver.url("/"), &[PAYMENT]).await;
        }

        Whole {
            relay,
            cell,
            server,
            users,
            receiver,
        }
    }
}

/// Cell `a` is split while payments are committed, attempts fail and the command dies at each step.
#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cell_is_split_under_load_and_each_event_is_delivered_by_one_half() {
    let Whole {
        relay,
        mut cell,
        server,
        users,
        receiver,
    } = Whole::start().await;
    let moved = users[2].to_string();
    let token = cell.token(&moved).await;

    // A third of the first attempts fail: there are always retries pending.
    receiver.answer(|request| {
        let payment = request.data()["payment_request_id"].as_i64().unwrap();
        match request.attempt() == 1 && payment % 3 == 0 {
            true => Answer::Status(500),
            false => Answer::Status(200),
        }
    });
    let stop = tokio_util::sync::CancellationToken::new();
    let load = tokio::spawn({
        let platform = relay.platform().await;
        let users = users.clone();
        let stop = stop.clone();
        async move {
            let mut payments = Vec::new();
            while !stop.is_cancelled() {
                for user in &users {
                    payments.extend(platform.payments(*user, 3).await);
                }
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            payments
        }
    });

    let clone = server.start_standby(Options::default()).await.unwrap();
    let new_url = clone.url("events");
    cell.set("cells.stores.b", &new_url);
    let split = ["cells", "split", "a", "--into", "b"];
    let killed_at = async |cell: &mut TestApp, point: &str| {
        cell.set_environment("FAILPOINTS", &format!("{point}=1*return(kill)"));
        let killed = cell.walhook(&split).await;
        let report = String::from_utf8_lossy(&killed.stderr).into_owned();
        assert!(report.contains(&format!("failpoint {point}")), "{report}");
        cell.set_environment("FAILPOINTS", "");
    };

    killed_at(&mut cell, "cell_has_halves_processes_run").await;
    killed_at(&mut cell, "cell_is_prepared_clone_does_not_have_it").await;
    let prepared = cell.walhook_ok(&split).await;
    assert!(
        prepared.contains("promote the server of cell b"),
        "{prepared}"
    );
    assert!(
        !cell.stop_signalled().await.success(),
        "the process notices"
    );
    let reason = refusal(&cell, &["run"]).await;
    assert!(reason.contains("cell a is being split into b"), "{reason}");

    promote(&clone).await;
    killed_at(&mut cell, "log_has_halves_stores_have_not").await;
    killed_at(&mut cell, "new_half_is_cell_old_is_not").await;
    let done = cell.walhook_ok(&split).await;
    assert!(
        done.contains("cell a has the shards 0-2047, and cell b 2048-4095"),
        "{done}"
    );
    let again = cell.walhook_ok(&split).await;
    assert_eq!(again, done, "it can be repeated");

    // The log is restored to its state before the split.
    run_sql(
        &relay.store().await,
        "delete from walhook.cell where name = 'b';
         update walhook.cell set last_shard = 4095, epoch = 1",
    )
    .await;
    for command in [&["run"][..], &split] {
        let reason = refusal(&cell, command).await;
        assert!(reason.contains("Run `walhook cells add`"), "{reason}");
    }
    let reason = refusal(&cell, &["cells", "split", "a", "--into", "b", "--abort"]).await;
    assert!(
        reason.contains("cell a is not being split into b"),
        "{reason}"
    );
    cell.walhook_ok(&["cells", "add", "b"]).await;
    cell.walhook_ok(&["cells", "add", "a"]).await;
    let again = cell.walhook_ok(&split).await;
    assert_eq!(again, done);

    // The log has both halves too.
    let url = cell.store_url.clone();
    cell.set("cells.stores.a", &relay.store_url);
    let reason = refusal(&cell, &split).await;
    assert!(reason.contains("cell a has the store"), "{reason}");
    cell.set("cells.stores.a", &url);

    // A clone of one half is none of the other.
    let other = server.start_standby(Options::default()).await.unwrap();
    cell.set("cells.stores.c", &other.url("events"));
    let reason = refusal(&cell, &["cells", "split", "b", "--into", "c"]).await;
    assert!(reason.contains("is no clone of that of cell b"), "{reason}");
    drop(other);

    let mut new = TestApp::with_databases(
        cell.server.clone(),
        format!("{}_b", cell.name),
        relay.source_url.clone(),
        new_url.clone(),
    );
    new.set("source.capture", "log")
        .set("source.log_url", relay.setting("store.url"))
        .set("source.slot", &cell.name)
        .set("cells.name", "b")
        .set_fast_retries();
    cell.run().await;
    new.run().await;

    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    stop.cancel();
    let payments = load.await.unwrap();
    relay.wait_for_events(payments.len()).await;

    for half in [&cell, &new] {
        half.wait_for_count("select log_number from walhook.checkpoint", payments.len())
            .await;
        half.wait_for_count("select count(*) from walhook.pending", 0)
            .await;
    }

    let expected: BTreeMap<i64, usize> = payments.iter().map(|payment| (*payment, 1)).collect();
    assert_eq!(deliveries(&receiver), expected);

    // Each webhook, token and delivery is in one half.
    let api = Api::new(&new.sidecar().api_url, &token);
    assert_eq!(api.webhooks().await.len(), 1);
    let old = api.at(&cell.sidecar().api_url);
    old.get("/webhooks").await.expect(401);

    for (half, users) in [(&cell, &users[..2]), (&new, &users[2..])] {
        let mut users: Vec<String> = users.iter().map(i64::to_string).collect();
        users.sort();
        let found: Vec<String> = one(
            &half.store().await,
            "select array_agg(user_id order by user_id) from walhook.webhook",
        )
        .await;
        assert_eq!(found, users);
    }

    assert_ne!(
        store_id(&cell.store().await).await,
        store_id(&new.store().await).await
    );
}

#[cfg(feature = "failpoints")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clone_that_was_promoted_too_early_is_refused_and_the_cell_can_continue() {
    let Whole {
        relay,
        mut cell,
        server,
        users,
        receiver,
    } = Whole::start().await;
    let split = ["cells", "split", "a", "--into", "b"];
    let reason = refusal(&cell, &split).await;
    assert!(reason.contains("cells.stores.b is not set"), "{reason}");

    cell.set("cells.stores.b", &relay.store_url.clone());
    let reason = refusal(&cell, &split).await;
    assert!(reason.contains("was promoted too early"), "{reason}");

    // A role that cannot write the map does not stop the cell.
    let clone = server.start_standby(Options::default()).await.unwrap();
    cell.set("cells.stores.b", &clone.url("events"));
    let role = format!("reader_{}", relay.name);
    let grants = format!(
        "create role {role} login; grant usage on schema walhook to {role};
         grant select on all tables in schema walhook to {role}"
    );
    run_sql(&relay.store().await, &grants).await;
    let reader = format!(
        "source.log_url={}",
        relay.store_url.replace("postgres@", &format!("{role}@"))
    );
    let reason = refusal(&cell, &[&["--set", &reader][..], &split].concat()).await;
    assert!(
        reason.contains("give it the rights of the log's owner"),
        "{reason}"
    );
    cell.sidecar().wait_until_ready().await;

    // The standby has the halves, and not what the processes did until they ended.
    cell.set_environment("FAILPOINTS", "cell_has_halves_processes_run=1*return(kill)");
    cell.walhook(&split).await;
    cell.set_environment("FAILPOINTS", "");
    let standby = postgres::connect(&clone.url("events")).await.unwrap();
    eventually("the standby to have the halves", async || {
        let halves = "select from walhook.cell where name = 'b'";
        standby.query_opt(halves, &[]).await.unwrap()
    })
    .await;
    promote(&clone).await;
    assert!(!cell.stop_signalled().await.success());
    let reason = refusal(&cell, &split).await;
    assert!(reason.contains("before it had all of cell a"), "{reason}");

    // URLs that lead to another store than they should.
    let url = cell.store_url.clone();
    let abort = ["cells", "split", "a", "--into", "b", "--abort"];
    cell.set("cells.stores.b", &url);
    let reason = refusal(&cell, &split).await;
    assert!(reason.contains("lead to the same store"), "{reason}");
    cell.set("cells.stores.a", &relay.store_url);
    let reason = refusal(&cell, &abort).await;
    assert!(reason.contains("nothing was changed"), "{reason}");
    cell.set("cells.stores.a", &url);

    let kept = cell.walhook_ok(&abort).await;
    assert!(kept.contains("cell a keeps the shards 0-4095"), "{kept}");
    cell.run().await;

    let platform = relay.platform().await;
    let mut payments = BTreeMap::new();
    for user in &users {
        payments.extend(
            platform
                .payments(*user, 3)
                .await
                .into_iter()
                .map(|payment| (payment, 1)),
        );
    }
    receiver.wait_for_deliveries(payments.len()).await;
    assert_eq!(deliveries(&receiver), payments);
}

/// Signs in as a browser does. Returns the cookie.
async fn sign_in(origin: &str, token: &str) -> String {
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let answer = client
        .post(format!("{origin}/ui/login"))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(format!("token={token}"))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 303);
    let cookie = answer.headers()["set-cookie"].to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_serves_all_cells_and_a_dead_one_fails_for_its_users_only() {
    const SECRET: &str = "a secret of at least thirty-two bytes";
    let mut cells = Cells::start().await;
    let (of_a, of_b) = (cells.users[0].to_string(), cells.users[2].to_string());
    let mut front = TestApp::prepare().await;

    for app in [&mut front, &mut cells.a] {
        app.set("auth.jwt.issuer", "https://platform.example")
            .set("auth.jwt.audience", "walhook")
            .set("auth.jwt.secret", SECRET);
    }

    front
        .set("cells.stores.a", &cells.a.store_url)
        .set("cells.stores.b", &cells.b.store_url);
    front.run_with(&["--roles", "api"]).await;
    for cell in ["a", "b"] {
        let up = format!("walhook_cell_up{{cell=\"{cell}\"}}");
        front.sidecar().wait_for_metric(&up, 1.0).await;
    }

    let at_a = front.api(&of_a).await;
    let at_b = front.api(&of_b).await;
    let jwt = hs256_token(
        SECRET,
        &json!({
            "iss": "https://platform.example", "aud": "walhook", "sub": of_b,
            "iat": jiff::Timestamp::now().as_second(), "exp": jiff::Timestamp::now().as_second() + 600,
        }),
    );
    let platform = Api::new(&at_b.url, &jwt);
    let origin = at_b.url.trim_end_matches("/api/public").to_owned();
    let cookie = sign_in(&origin, &at_b.token).await;
    let own = at_b.webhooks().await;
    let others = at_a.webhooks().await;
    assert_eq!((own.len(), others.len()), (1, 1));
    let own = own[0]["id"].as_str().unwrap();
    let path = format!("/webhooks/{own}");

    // The same user, by a token, by the platform's and by a session; and no other.
    platform.get(&path).await.expect(200);
    let by_session = |path: String| {
        let api = at_b.at(&at_b.url);
        let cookie = cookie.clone();
        async move { api.get_without_token(&path, &[("cookie", &cookie)]).await.0 }
    };
    assert_eq!(by_session(path.clone()).await, 200);
    at_a.get(&path).await.expect(404);
    let link = at_b.post("/sign-in-links", json!({})).await.expect(201);
    let link = link.json()["url"].as_str().unwrap().to_owned();
    let page = link.trim_start_matches(&origin).to_owned();
    let (status, page) = Api::new(&origin, "").get_without_token(&page, &[]).await;
    assert!(status == 200 && page.contains(&of_b), "{page}");

    // A token says which cell to ask, and nothing else: another one does not have it.
    let forged = format!("whk_{}{}", &at_b.token[4..7], &at_a.token[7..]);
    Api::new(&at_a.url, &forged)
        .get("/webhooks")
        .await
        .expect(401);

    // The keys of all cells are published together.
    for api in [&at_a, &at_b] {
        let body = json!({ "name": "signed", "url": cells.receiver.url("/"), "events": [PAYMENT], "signing": "hmac+ed25519" });
        api.post("/webhooks", body).await.expect(201);
    }
    let keys = Api::new(&origin, "");
    eventually("the keys of both", async || {
        let (_, keys) = keys
            .get_without_token("/.well-known/walhook-keys.json", &[])
            .await;
        let keys: serde_json::Value = serde_json::from_str(&keys).ok()?;
        (keys["keys"].as_array()?.len() == 2).then_some(())
    })
    .await;

    // A cell's own API has no users of others.
    cells.a.restart().await;
    let wrong = platform.at(&cells.a.sidecar().api_url);
    wrong.get("/webhooks").await.expect(503);
    let reason = refusal(&cells.a, &["token", "create", "--force", "--user", &of_b]).await;
    assert!(reason.contains("is of another cell"), "{reason}");

    cells.server_of_b.stop(StopMode::Immediate).await.unwrap();
    front
        .sidecar()
        .wait_for_metric("walhook_cell_up{cell=\"b\"}", 0.0)
        .await;
    at_b.get("/webhooks").await.expect(503);
    platform.get("/webhooks").await.expect(503);
    assert_eq!(by_session("/webhooks".to_owned()).await, 503);
    assert_eq!(at_a.webhooks().await.len(), 2);
    at_a.get_without_token("/openapi.json", &[]).await;
    front.sidecar().wait_until_ready().await;

    cells.server_of_b.start_again().await.unwrap();
    eventually("the cell to be served again", async || {
        (at_b.get("/webhooks").await.status == 200).then_some(())
    })
    .await;
}
