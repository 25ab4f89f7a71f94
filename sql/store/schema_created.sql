-- Whether the schema exists, also if no migration was applied
select to_regnamespace('walhook') is not null
