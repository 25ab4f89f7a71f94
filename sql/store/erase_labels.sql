-- Relation 7 is the table of labels. $1 user, $2 rows at most
delete from walhook.lookup_row
where (relation, row_id) in (
    select relation, row_id from walhook.lookup_row where relation = 7 and state::json->>0 = $1 limit $2
)
