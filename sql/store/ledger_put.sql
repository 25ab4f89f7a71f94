-- $1 tables, $2 rows, $3 states
insert into walhook.last_seen (relation, row_id, state)
select * from unnest($1::smallint[], $2::bigint[], $3::text[])
on conflict (relation, row_id) do update set state = excluded.state
where last_seen.state <> excluded.state
