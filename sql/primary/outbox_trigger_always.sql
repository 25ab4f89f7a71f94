alter table only {table} enable always trigger walhook_{event};
