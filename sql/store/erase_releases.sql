-- Relation 1 is the table of releases, relation 7 that of labels. $1 user, $2 rows at most
delete from walhook.lookup_row
where (relation, row_id) in (
    select release.relation, release.row_id
    from walhook.lookup_row as label
    join walhook.lookup_row as release on release.relation = 1 and release.state::json->>0 = label.row_id::text
    where label.relation = 7 and label.state::json->>0 = $1
    limit $2
)
