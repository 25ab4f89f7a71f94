create publication {publication} for table {tables}
    with (publish = 'insert, update, delete, truncate', publish_via_partition_root = true{generated});
