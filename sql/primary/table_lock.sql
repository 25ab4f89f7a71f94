lock table only {table} in {mode} mode;
