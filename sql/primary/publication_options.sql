alter publication {publication}
    set (publish = 'insert, update, delete, truncate', publish_via_partition_root = true{generated});
