"""Export to and import from a real cluster."""
