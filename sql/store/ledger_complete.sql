-- The tables of which every row is known
select relation from walhook.ledger_complete
