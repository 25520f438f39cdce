"""What users hold: producers, consumers, scans, and a look into files."""
