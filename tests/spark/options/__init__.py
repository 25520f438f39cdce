"""Options of the data source, and what they refuse."""
