-- Attempts whose outcome nobody will report any more: no lease lasts so long.
delete from walhook.superseded_attempt where noted_at < now() - interval '1 day'
