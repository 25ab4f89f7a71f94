alter table {table} replica identity {identity};
