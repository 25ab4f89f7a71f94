alter table {table} enable always trigger walhook_{event};
