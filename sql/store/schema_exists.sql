select to_regclass('walhook.checkpoint') is not null
