"""Administration of a directory: health, backup, repair, blockers, inspection."""
