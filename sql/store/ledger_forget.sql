-- A ledger that is no longer kept would tell of transitions that never were.
truncate walhook.last_seen, walhook.ledger_complete
