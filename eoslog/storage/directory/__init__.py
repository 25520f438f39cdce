"""The log directory: its session, its processes, its topics' folders."""
