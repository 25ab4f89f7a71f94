//! Changes of the publication under a running process and while none runs: no event goes to the
//! former owner of a label whose transfer the stream lacks, and what the stream lacks is reported.

use crate::support::run_sql;
use crate::support::{Platform, Receiver, TestApp, versions};
use crate::wait_until_unready;
use walhook::private_postgres::Options;
use walhook::store::Store;

const STATUS: &str = "distribution.outlet.status_changed";
const GAP: &str = "gap: changes were lost (publication_changed)";

/// A label with a distribution, whose owner is in the cache of a running process, and the user that
/// gets the label next.
pub struct Scene {
    pub app: TestApp,
    pub platform: Platform,
    pub former: Receiver,
    pub owner: Receiver,
    owner_id: i64,
    label: i64,
    pub entry: i64,
}

impl Scene {
    /// Starts a process that checks the publication, or the triggers, with each batch only, not
    /// after heartbeats.
    pub async fn start(mut app: TestApp) -> Scene {
        app.set("source.heartbeat", "1h");
        app.setup().await;
        app.run().await;

        let platform = app.platform().await;
        let (former, former_id) = subscriber(&app, &platform).await;
        let (owner, owner_id) = subscriber(&app, &platform).await;
        let label = platform.label(former_id).await;
        let release = platform.release(label).await;
        let entry = platform
            .distribution(release, platform.outlet("O").await, "scheduled")
            .await;

        former.wait_for(1).await;

        Scene {
            app,
            platform,
            former,
            owner,
            owner_id,
            label,
            entry,
        }
    }

    fn publication(&self) -> String {
        format!("alter publication {}", self.app.name)
    }

    async fn execute(&self, statement: &str) {
        self.platform.execute(statement, &[]).await;
    }

    pub fn transfer(&self) -> String {
        format!(
            "update label set user_id = {} where id = {}",
            self.owner_id, self.label
        )
    }

    async fn distribute_again(&self) {
        let outlet = self.platform.outlet("P").await;
        let statement = "insert into distro_queue (id, release_id, outlet_id, status)
             select max(id) + 1, (array_agg(release_id))[1], $1, 'scheduled' from distro_queue";
        self.platform.execute(statement, &[&outlet]).await;
    }

    /// Verifies that the gap is reported, and that the next event goes to the new owner.
    async fn require_gap_and_owner(&mut self) {
        self.owner.wait_for(1).await;
        wait_until_unready(self.app.sidecar(), GAP).await;
        assert_eq!(
            self.former.requests().len(),
            1,
            "events of the former owner"
        );
    }

    /// Verifies that capture stops with `reason`, and that nothing was sent to the former owner.
    async fn require_stop(&mut self, reason: &str) {
        wait_until_unready(self.app.sidecar(), reason).await;
        wait_until_unready(self.app.sidecar(), GAP).await;
        assert_eq!(
            self.former.requests().len(),
            1,
            "events of the former owner"
        );
    }
}

async fn subscriber(app: &TestApp, platform: &Platform) -> (Receiver, i64) {
    let id = platform.user(&[]).await;
    let receiver = Receiver::start().await;
    app.api(&id.to_string())
        .await
        .create_webhook(&receiver.url("/"), &[STATUS])
        .await;

    (receiver, id)
}

/// Starts a private server of a version that can publish schemas and filter rows.
async fn of_version_15_or_later() -> Option<TestApp> {
    let programs = versions::since(15)?;

    Some(
        TestApp::prepare_alone(Options {
            programs: Some(&programs),
            ..Options::default()
        })
        .await,
    )
}

#[tokio::test]
async fn a_publication_that_lacks_an_operation_stops_capture() {
    let mut scene = Scene::start(TestApp::prepare().await).await;
    scene
        .execute(&format!("{} set (publish = 'insert')", scene.publication()))
        .await;
    scene.execute(&scene.transfer()).await;
    scene.distribute_again().await;
    scene.require_stop("does not publish every operation").await;

    assert!(
        scene
            .app
            .walhook_ok(&["setup"])
            .await
            .contains("options set")
    );

    scene.owner.wait_for(1).await;
    assert_eq!(scene.former.requests().len(), 1);
}

#[tokio::test]
async fn options_that_were_changed_and_restored_are_a_gap() {
    let mut scene = Scene::start(TestApp::prepare().await).await;
    let restore = format!(
        "{} set (publish = 'insert, update, delete, truncate')",
        scene.publication()
    );
    let change = format!("{} set (publish = 'insert')", scene.publication());

    scene.execute(&change).await;
    scene.execute(&scene.transfer()).await;
    scene.execute(&restore).await;
    scene
        .platform
        .set_distribution_status(scene.entry, "batched")
        .await;
    scene.require_gap_and_owner().await;
    assert!(scene.app.stop().await.success());
    scene.app.walhook_ok(&["repair"]).await;

    // Also between the repair and the next start of the stream.
    scene.execute(&change).await;
    scene.execute(&restore).await;

    let sidecar = scene.app.spawn(&[]);
    wait_until_unready(&sidecar, GAP).await;
    assert!(sidecar.stop().await.success());
}

/// Verifies that a gap is reported if `member` leaves the publication and returns.
async fn assert_gap_of(app: TestApp, member: &str) {
    let mut scene = Scene::start(app).await;
    let publication = scene.publication();

    scene.execute(&format!("{publication} drop {member}")).await;
    scene.execute(&scene.transfer()).await;
    scene.execute(&format!("{publication} add {member}")).await;
    scene
        .platform
        .set_distribution_status(scene.entry, "batched")
        .await;
    scene.require_gap_and_owner().await;
}

#[tokio::test]
async fn a_table_that_leaves_the_publication_and_returns_is_a_gap() {
    assert_gap_of(TestApp::prepare().await, "table label").await;
}

#[tokio::test]
async fn a_schema_that_leaves_the_publication_and_returns_is_a_gap() {
    let Some(app) = of_version_15_or_later().await else {
        return;
    };

    let create = format!(
        "create publication {} for tables in schema public",
        app.name
    );
    run_sql(&app.source().await, &create).await;
    assert_gap_of(app, "tables in schema public").await;
}

#[tokio::test]
async fn a_row_filter_stops_capture_and_setup_names_it() {
    let Some(app) = of_version_15_or_later().await else {
        return;
    };

    let mut scene = Scene::start(app).await;
    let filter = format!(
        "begin; {0} drop table label; {0} add table label where (id < 0); {1}; commit",
        scene.publication(),
        scene.transfer()
    );

    run_sql(&scene.platform.client, &filter).await;
    scene
        .platform
        .set_distribution_status(scene.entry, "batched")
        .await;
    scene
        .require_stop("has a row filter (`where`) for public.label")
        .await;

    let refused = scene.app.walhook(&["setup"]).await;
    let refused = String::from_utf8(refused.stderr).unwrap();
    let remedy = format!(
        "`alter publication \"{}\" drop table \"public\".\"label\"`, then run `walhook setup`",
        scene.app.name
    );

    assert!(refused.contains(&remedy), "{refused}");
    scene
        .execute(&format!("{} drop table label", scene.publication()))
        .await;

    assert!(
        scene
            .app
            .walhook_ok(&["setup"])
            .await
            .contains(r#"added "public"."label""#)
    );

    scene.owner.wait_for(1).await;
    assert_eq!(scene.former.requests().len(), 1);
}

#[tokio::test]
async fn a_table_that_takes_the_name_of_a_looked_up_one_is_noticed_with_the_next_change() {
    let mut scene = Scene::start(TestApp::prepare().await).await;
    let swap = format!(
        "create table other_label (like label including all); insert into other_label select * from label;
         alter table label rename to old_label; alter table other_label rename to label; {}",
        scene.transfer()
    );

    scene.platform.transaction(&swap).await;
    scene
        .platform
        .set_distribution_status(scene.entry, "batched")
        .await;
    scene
        .require_stop(": lacks public.label; run `walhook setup`")
        .await;

    assert!(
        scene
            .app
            .walhook_ok(&["setup"])
            .await
            .contains(r#"added "public"."label""#)
    );

    scene.owner.wait_for(1).await;
    assert_eq!(scene.former.requests().len(), 1);
}

#[tokio::test]
async fn what_the_publication_streams_is_known_from_setup_on() {
    let app = TestApp::prepare().await;
    app.setup().await;

    let store = Store::open(&app.store_url, 1).unwrap();
    let known = store.publication_members(&app.name).await.unwrap();

    assert!(known.is_some());

    // A process that takes the lease on an outbox which is no longer read, just after a switch to
    // the WAL.
    store
        .claim_checkpoint(&app.name, uuid::Uuid::now_v7())
        .await
        .unwrap();
    assert_eq!(store.publication_members(&app.name).await.unwrap(), known);
}
