-- $1 table, $2 the id after which the page begins, $3 its size
select row_id, state
from walhook.last_seen
where relation = $1 and row_id > $2
order by row_id
limit $3
