-- Deletes a ledger that is no longer kept: compared with it, a repair would find transitions that did not happen.
truncate walhook.last_seen, walhook.ledger_complete
