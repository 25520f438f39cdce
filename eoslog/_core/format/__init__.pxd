# Record batches: layout, checksums, records.
