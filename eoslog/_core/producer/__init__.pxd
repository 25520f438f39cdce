# Records in, batches out.
