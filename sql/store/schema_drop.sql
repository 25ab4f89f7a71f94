drop schema if exists walhook cascade
