"""Arrow schemas of records, and Arrow columns as input."""
