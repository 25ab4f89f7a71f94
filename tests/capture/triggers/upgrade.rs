//! Triggers that an earlier build installed, and the rows that they left in the outbox.

use super::{by_triggers, events, number};
use crate::support::TestApp;
use crate::support::versions::installed;
use walhook::private_postgres::Options;

/// Restores the state of an earlier build: triggers for each statement, also on partitions, which
/// did not pair rows and were not noted.
const EARLIER: &str = "
    drop table walhook_capture.installed;
    drop trigger paired on walhook_capture.outbox;
    drop function walhook_capture.outbox_paired();
    drop index walhook_capture.outbox_deleted;
    create or replace function walhook_capture.capture_distro_queue() returns trigger language plpgsql security definer as $$ begin
        if tg_op = 'INSERT' then
            insert into walhook_capture.outbox (relation, operation, muted, new)
            select 'distro_queue', 'I', false, array[n.id::text, n.release_id::text, n.outlet_id::text, n.status, n.takedown::text, n.message] from new_rows n;
        elsif tg_op = 'DELETE' then
            insert into walhook_capture.outbox (relation, operation, muted, old)
            select 'distro_queue', 'D', false, array[o.id::text, o.release_id::text, o.outlet_id::text, o.status, o.takedown::text, o.message]
            from old_rows o;
        else
            insert into walhook_capture.outbox (relation, operation, muted, old, new)
            select 'distro_queue', case when n.id is null then 'D' when o.id is null then 'I' else 'U' end, false,
                case when o.id is not null then array[o.id::text, o.release_id::text, o.outlet_id::text, o.status, o.takedown::text, o.message] end,
                case when n.id is not null then array[n.id::text, n.release_id::text, n.outlet_id::text, n.status, n.takedown::text, n.message] end
            from old_rows o full join new_rows n on o.id = n.id and o.status = n.status;
        end if;
        return null;
    end $$;
    comment on function walhook_capture.capture_distro_queue() is 'walhook earlier';
    drop trigger walhook_insert on distro_queue; drop trigger walhook_update on distro_queue;
    drop trigger walhook_delete on distro_queue;
    do $$ declare name text; begin
        foreach name in array array['distro_queue', 'distro_queue_done', 'distro_queue_rest'] loop
            execute format('create trigger walhook_insert after insert on %I referencing new table as new_rows
                for each statement execute function walhook_capture.capture_distro_queue()', name);
            execute format('create trigger walhook_update after update on %I referencing old table as old_rows new table as new_rows
                for each statement execute function walhook_capture.capture_distro_queue()', name);
            execute format('create trigger walhook_delete after delete on %I referencing old table as old_rows
                for each statement execute function walhook_capture.capture_distro_queue()', name);
        end loop;
    end $$";
const PARTITIONED: &str = "
    alter table distro_queue rename to before;
    alter table before drop constraint distro_queue_pkey;
    create table distro_queue (like before including defaults, primary key (id, status)) partition by list (status);
    create table distro_queue_done partition of distro_queue for values in ('complete');
    create table distro_queue_rest partition of distro_queue default;
    drop table before";

#[tokio::test]
async fn setup_updates_the_triggers_of_an_earlier_build_and_their_rows_are_read() {
    for (version, programs) in installed() {
        let mut app = TestApp::prepare_alone(Options {
            programs: Some(&programs),
            ..Options::default()
        })
        .await;
        by_triggers(&mut app);

        let platform = app.platform().await;
        platform.client.batch_execute(PARTITIONED).await.unwrap();

        let user = platform.user(&[]).await;
        let label = platform.label(user).await;
        let release = platform.release(label).await;

        app.setup().await;
        platform.client.batch_execute(EARLIER).await.unwrap();

        // Written by the earlier build's triggers: the move is a deletion and an insertion.
        let first = platform
            .distribution(release, platform.outlet("Shop").await, "batched")
            .await;
        platform.set_distribution_status(first, "complete").await;

        let deletions = "select count(*) from walhook_capture.outbox where operation = 'D'";
        assert_eq!(number(&platform.client, deletions).await, 1);

        let check = app.walhook(&["check"]).await;
        let check = String::from_utf8_lossy(&check.stdout).into_owned();

        assert!(
            check.contains("does not pair rows") && check.contains("made for another mapping"),
            "{check}"
        );

        let done = app.walhook_ok(&["setup"]).await;
        assert!(
            done.contains("1 functions created, 3 triggers created, rows"),
            "PostgreSQL {version}: {done}"
        );
        assert_eq!(
            app.walhook_ok(&["setup"]).await.trim(),
            "everything is set up",
            "PostgreSQL {version}"
        );
        assert!(
            !app.walhook_ok(&["check"])
                .await
                .contains("does not pair rows")
        );

        let second = platform
            .distribution(release, platform.outlet("Store").await, "batched")
            .await;
        platform.set_distribution_status(second, "complete").await;
        assert_eq!(
            number(&platform.client, deletions).await,
            1,
            "the move after setup is one update"
        );
        app.run_with(&["--roles", "capture"]).await;
        app.wait_for_events(6).await;

        let stored = events(&app).await;
        let moves = stored
            .iter()
            .filter(|(kind, _)| kind == "distribution.outlet.status_changed");
        let moves: Vec<String> = moves
            .map(|(_, data)| format!("{} {}", data["previous_status"], data["status"]))
            .collect();
        let expected = [
            r#"null "batched""#,
            r#"null "complete""#,
            r#"null "batched""#,
            r#""batched" "complete""#,
        ];

        assert_eq!(moves, expected, "PostgreSQL {version}");
        assert_eq!(
            number(&app.store().await, "select count(*) from walhook.gap").await,
            0,
            "PostgreSQL {version}"
        );
    }
}
