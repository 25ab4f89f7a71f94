-- The tables of which the ledger has every row
select relation from walhook.ledger_complete
