create unique index concurrently {index} on {table} ({columns});
