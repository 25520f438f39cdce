# The offset map of a compaction.
