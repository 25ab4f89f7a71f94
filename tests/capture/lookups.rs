//! Looked-up rows: events use owners and add-ons as of the change, even after failures and after a
//! gap in the stream.

use crate::support::proxy::{Proxy, Weather};
use crate::support::{Platform, Receiver, TestApp, eventually, run_sql};
use crate::{wait_until_reading, wait_until_unready};

const STATUS: &str = "distribution.outlet.status_changed";
const FLAG: &str = "stream_radar.flag_created";
const PAYMENT: &str = "payment.statement_ready";

struct Owner {
    id: i64,
    receiver: Receiver,
}

async fn owner(app: &TestApp, platform: &Platform, addons: &[&str], events: &[&str]) -> Owner {
    let id = platform.user(addons).await;
    let receiver = Receiver::start().await;
    app.api(&id.to_string())
        .await
        .create_webhook(&receiver.url("/"), events)
        .await;

    Owner { id, receiver }
}

/// Creates a release with a distribution. Returns the label and the distribution.
async fn distributed(platform: &Platform, owner: &Owner) -> (i64, i64) {
    let label = platform.label(owner.id).await;
    let release = platform.release(label).await;
    let outlet = platform.outlet("O").await;

    (
        label,
        platform.distribution(release, outlet, "scheduled").await,
    )
}

async fn flag(platform: &Platform, release: i64) {
    platform
        .execute(
            "insert into stream_radar_flag (id, dsp, isrc, release_id, severity, status, published_at)
             select coalesce(max(id), 0) + 1, 'd', 'i', $1, 'low', 'active', now() from stream_radar_flag",
            &[&release],
        )
        .await;
}

#[tokio::test]
async fn an_event_that_could_not_be_stored_at_first_goes_to_the_owner_as_of_its_change() {
    let mut app = TestApp::start().await;
    let platform = app.platform().await;
    let before = owner(&app, &platform, &[], &[STATUS]).await;
    let after = owner(&app, &platform, &[], &[STATUS]).await;
    let (label, entry) = distributed(&platform, &before).await;

    app.wait_for_events(1).await;
    let store = app.store().await;

    // A row makes the trigger refuse: to drop the trigger would lock the partitions in another
    // order than the sidecar does.
    let refuse = "create table refusal (); insert into refusal default values;
         create function refuse() returns trigger language plpgsql as
         $$ begin if exists (select from public.refusal) then raise 'not now'; end if; return new; end $$;
         create trigger refuse before insert on walhook.event for each row execute function refuse()";
    run_sql(&store, refuse).await;

    let statements = format!(
        "update distro_queue set status = 'batched' where id = {entry};
         update label set user_id = {} where id = {label}",
        after.id
    );
    platform.transaction(&statements).await;
    wait_until_unready(app.sidecar(), "enqueue: events cannot be stored now").await;
    run_sql(&store, "delete from refusal").await;
    platform.set_distribution_status(entry, "transcoding").await;
    app.wait_for_events(3).await;

    // Counted in the store: deliveries of the first attempt may have been handed off before it
    // failed.
    let owned = "select count(*) from walhook.event where user_id = $1";

    for (owner, count) in [(&before, 2), (&after, 1)] {
        let found: i64 = store
            .query_one(owned, &[&owner.id.to_string()])
            .await
            .unwrap()
            .get(0);
        assert_eq!(found, count, "events of user {}", owner.id);
    }
}

/// The lookups of a replica whose batch another one has stored are as old as its last change.
#[tokio::test]
async fn a_replica_that_captures_again_sends_nothing_to_the_former_owner_of_a_label() {
    let mut app = TestApp::prepare().await;
    let source = app.source_url.clone();
    let store = app.store_url.clone();
    let proxy = Proxy::start(app.server.port()).await;

    app.set(
        "source.url",
        &source.replace(
            &format!(":{}/", app.server.port()),
            &format!(":{}/", proxy.port),
        ),
    );

    app.set("store.url", &format!("{store}?application_name=first"));
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let former = owner(&app, &platform, &[], &[STATUS]).await;
    let owner = owner(&app, &platform, &[], &[STATUS]).await;
    let (label, entry) = distributed(&platform, &former).await;

    app.wait_for_events(1).await;
    let second = app
        .set("source.url", &source)
        .set("store.url", &store)
        .replica(&[])
        .await;
    let client = app.store().await;
    let refuse = "create table refusal (); insert into refusal default values;
         create function refuse() returns trigger language plpgsql as
         $$ begin if current_setting('application_name') = 'first' and exists (select from public.refusal)
         then raise 'not now'; end if; return new; end $$;
         create trigger refuse before insert on walhook.event for each row execute function refuse()";

    run_sql(&client, refuse).await;
    platform.set_distribution_status(entry, "batched").await;
    wait_until_unready(app.sidecar(), "enqueue: events cannot be stored now").await;

    // The second replica takes the slot: the first one does not notice the end of its connection.
    proxy.weather(Weather::Frozen);
    let end =
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = $1";

    platform.client.query(end, &[&app.name]).await.unwrap();
    app.wait_for_events(2).await;
    platform
        .execute(
            "update label set user_id = $2 where id = $1",
            &[&label, &owner.id],
        )
        .await;

    platform.set_distribution_status(entry, "transcoding").await;
    app.wait_for_events(3).await;

    // The first replica finds its batch stored, and stands by.
    proxy.weather(Weather::Fair);
    run_sql(&client, "delete from refusal").await;

    let first = &*app.sidecar();
    eventually("the first replica to stand by", async || {
        first.readiness().await.filter(|(status, _)| *status == 200)
    })
    .await;
    assert!(second.stop().await.success());
    platform.set_distribution_status(entry, "batched").await;
    app.wait_for_events(4).await;

    let owners = "select user_id from walhook.event order by occurred_at, id";
    let owners: Vec<String> = client
        .query(owners, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();

    assert_eq!(
        owners,
        [former.id, former.id, owner.id, owner.id].map(|id| id.to_string())
    );
}

#[tokio::test]
async fn an_add_on_that_ends_while_it_is_not_published_raises_no_more_events() {
    let mut app = TestApp::start_with(|app| app.set("source.heartbeat", "200ms")).await;

    let platform = app.platform().await;
    let owner = owner(&app, &platform, &["stream_radar"], &[FLAG, PAYMENT]).await;
    let label = platform.label(owner.id).await;
    let release = platform.release(label).await;

    flag(&platform, release).await;
    owner.receiver.wait_for(1).await;
    platform
        .execute(
            &format!("alter publication {} drop table user_addon", app.name),
            &[],
        )
        .await;

    wait_until_unready(
        app.sidecar(),
        ": lacks public.user_addon; run `walhook setup`",
    )
    .await;
    platform
        .execute("delete from user_addon where user_id = $1", &[&owner.id])
        .await;
    app.setup().await;
    wait_until_reading(app.sidecar()).await;
    flag(&platform, release).await;
    platform.payment(owner.id, "ready").await;

    let received = owner.receiver.wait_for(2).await;
    assert_eq!(received[1].event(), PAYMENT);
    app.wait_for_events(2).await;
}

#[tokio::test]
async fn an_add_on_is_revoked_even_if_the_key_is_only_the_user() {
    let mut app = TestApp::prepare().await;
    let owner_of_tables = app.source().await;
    let by_user =
        "alter table user_addon drop constraint user_addon_pkey, add primary key (user_id)";

    run_sql(&owner_of_tables, by_user).await;
    app.setup().await;
    app.run().await;

    let platform = app.platform().await;
    let owner = owner(&app, &platform, &["stream_radar"], &[FLAG, PAYMENT]).await;
    let label = platform.label(owner.id).await;
    let release = platform.release(label).await;

    flag(&platform, release).await;
    owner.receiver.wait_for(1).await;
    platform
        .execute("delete from user_addon where user_id = $1", &[&owner.id])
        .await;
    flag(&platform, release).await;
    platform.payment(owner.id, "ready").await;

    let received = owner.receiver.wait_for(2).await;
    assert_eq!(received[1].event(), PAYMENT);
    app.wait_for_events(2).await;

    // Another session changes the replica identity while the stream is read.
    app.restart().await;
    platform
        .execute("alter table user_addon replica identity default", &[])
        .await;
    platform
        .execute(
            "insert into user_addon values ($1, 'stream_radar')",
            &[&owner.id],
        )
        .await;

    wait_until_unready(app.sidecar(), "gap: changes were lost (identity_lost)").await;
    platform
        .execute("delete from user_addon where user_id = $1", &[&owner.id])
        .await;
    flag(&platform, release).await;
    app.setup().await;
    wait_until_reading(app.sidecar()).await;
    platform.payment(owner.id, "ready").await;

    let received = owner.receiver.wait_for(3).await;
    assert_eq!(received[2].event(), PAYMENT);
    app.wait_for_events(3).await;
}
