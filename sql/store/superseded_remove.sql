-- Removes notes of attempts whose lease has long expired: their outcome can no longer be reported.
delete from walhook.superseded_attempt where noted_at < now() - interval '1 day'
