-- Seconds since the checkpoint last moved. $1 slot
select extract(epoch from now() - updated_at)::float8 from walhook.checkpoint where slot = $1
