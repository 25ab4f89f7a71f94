-- The tables whose rows are copied, with the mapping by which they were read
select relation, mapping from walhook.lookup_table
