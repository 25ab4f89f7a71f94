-- $1 table, $2 the row behind which to begin, $3 how many
select row_id, state
from walhook.last_seen
where relation = $1 and row_id > $2
order by row_id
limit $3
