"""Topics and groups moved between a directory and a cluster or a broker's files."""
