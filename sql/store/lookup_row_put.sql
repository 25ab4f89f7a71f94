-- $1 tables, $2 rows, $3 states, $4 parents
insert into walhook.lookup_row (relation, row_id, state, parent_id)
select * from unnest($1::smallint[], $2::bigint[], $3::text[], $4::bigint[])
on conflict (relation, row_id) do update set state = excluded.state, parent_id = excluded.parent_id
where lookup_row.state <> excluded.state
