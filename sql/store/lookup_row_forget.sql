truncate walhook.lookup_row, walhook.lookup_table
