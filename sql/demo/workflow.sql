-- What happens on the simulated platform of `walhook demo`. Each paragraph is one transaction;
-- `-- 1 in 4` before it is its probability, except in the first workflows, which have them all.
-- $id is the number of the workflow: rows have ids that begin with it.

-- name: first_rows
insert into app_user
select user_id, 'owner' || user_id || '@example.com'
from generate_series(1, 3) user_id;

-- The first user has every add-on; the last has none at first.
insert into user_addon (user_id, addon)
values (1, 'preflight_qc'), (1, 'stream_radar'), (2, 'stream_radar');

insert into label (id, user_id, name)
values (11, 1, 'Aurora Recordings'), (12, 1, 'Low Tide'), (13, 2, 'Paper Moon Music'), (14, 3, 'Kiosk Tapes');

insert into outlet (id, name)
values (21, 'Spotify'), (22, 'Apple Music'), (23, 'Deezer'), (24, 'TIDAL'), (25, 'Amazon Music'), (26, 'Beatport');

-- name: payment
insert into payment (id, user_id, invoice_number, period_end, amount, total_due_usd, currency, status)
select $id00, 1 + $id % 3, 'INV-$id', date_trunc('month', now())::date - 1, amount, amount * rate, currency, 'draft'
from (values (1.00, 'USD'), (1.08, 'EUR')) rates (rate, currency), round((random() * 5000)::numeric, 2) amount
order by random()
limit 1;

update payment set status = 'ready' where id = $id00;

-- name: release
insert into release (id, label_id, cat, title, review_status, delivery_status)
select $id00, 11 + $id % 4, 'WAL$id', adjective || ' ' || noun, 'draft', 'pending'
from
    unnest('{Silver,Quiet,Northern,Electric,Paper,Hollow,Golden,Distant}'::text[]) adjective,
    unnest('{Harbour,Signals,Summer,Machines,Letters,Rivers,Static,Gardens}'::text[]) noun
order by random()
limit 1;
insert into track (id, release_id, isrc, title)
select $id01, id, 'QZWAL' || lpad('$id', 7, '0'), title from release where id = $id00;

-- 1 in 4
begin;
update release set review_status = 'approved', updated_at = now() where id = $id00;
rollback;

update release set review_status = 'to_review', pre_review_hold = true, updated_at = now() where id = $id00;

insert into preflight_report (
    id, release_id, generated_at, profile_name, profile_version, blocking, informational, requires_feedback
)
values ($id02, $id00, now(), 'standard', 4, random() * 2, random() * 8, random());

-- 1 in 4
update release
set review_status = 'require_changes',
    review_issues = '[{"field": "artwork", "message": "The cover shows a web address"}]',
    pre_review_hold = false,
    updated_at = now()
where id = $id00;

update release
set review_status = 'to_review', review_issues = null, updated_at = now()
where id = $id00 and review_status = 'require_changes';

update release
set review_status = 'approved', pre_review_hold = false, updated_at = now()
where id = $id00;

-- 1 in 6
insert into transcoder_queue (id, track_id, status) values ($id03, $id01, 'queued');

insert into transcoder_queue_file
select id + file, id, file, 'error' from transcoder_queue, generate_series(1, 2) file where id = $id03;
update transcoder_queue
set status = case when random() < 0.5 then 'error' else 'incomplete' end, updated_at = now()
where id = $id03;

insert into transcoder_queue (id, track_id, status) values ($id06, $id01, 'queued');

insert into transcoder_queue_file values ($id07, $id06, 1, 'complete'), ($id08, $id06, 2, 'complete');
update transcoder_queue set status = 'complete', updated_at = now() where id = $id06;

insert into distro_queue (id, release_id, outlet_id, status)
select $id10 + number, $id00, 21 + ($id + number) % 6, 'scheduled'
from generate_series(1, 2 + floor(random() * 4)::bigint) number;

update release set delivery_status = 'distributing', updated_at = now() where id = $id00;

update distro_queue set status = 'transcoding', updated_at = now() where release_id = $id00;

update distro_queue set status = 'batched', updated_at = now() where release_id = $id00;

-- 1 in 5
update distro_queue
set status = (array['error', 'fault', 'rejected', 'batch_exception'])[1 + floor(random() * 4)],
    message = 'The outlet rejected the artwork: it must be 3000 by 3000 pixels',
    updated_at = now()
where id = $id11;

update distro_queue set status = 'complete', updated_at = now() where id = $id12;

update distro_queue set status = 'complete', updated_at = now() where release_id = $id00 and status = 'batched';

update release set delivery_status = 'distributed', updated_at = now() where id = $id00;

-- 1 in 4
insert into stream_radar_flag (
    id, dsp, isrc, release_id, track_id, severity, status, first_detected_at, last_detected_at,
    estimated_affected_streams, published_at
)
select
    $id20, (array['spotify', 'deezer', 'tidal'])[1 + floor(random() * 3)], isrc, release_id, id,
    (array['low', 'medium', 'high'])[1 + floor(random() * 3)], 'active', now() - interval '1 day', now(),
    random() * 50000, now()
from track
where id = $id01;

update stream_radar_flag set status = 'resolved', resolved_at = now() where id = $id20;

update stream_radar_flag
set status = 'active', resolved_at = null, last_detected_at = now()
where id = $id20;

update stream_radar_flag set status = 'resolved', resolved_at = now() where id = $id20;

-- 1 in 5
insert into distro_queue (id, release_id, outlet_id, status, takedown)
values ($id21, $id00, 21, 'scheduled', true);

update distro_queue set status = 'complete', updated_at = now() where id = $id21;

-- name: rejected_release
insert into release (id, label_id, cat, title, review_status, delivery_status)
values ($id00, 11 + $id % 4, 'WAL$id', 'Untitled', 'draft', 'pending');

update release set review_status = 'to_review', updated_at = now() where id = $id00;

update release
set review_status = 'rejected',
    review_issues = '[{"field": "title", "message": "The release has no title"}]',
    updated_at = now()
where id = $id00;

-- name: addon
insert into user_addon (user_id, addon) values (3, 'preflight_qc') on conflict do nothing;

delete from user_addon where user_id = 3 and addon = 'preflight_qc';
