"""Log compaction: choosing the records that stay, and writing cleaned segments."""
