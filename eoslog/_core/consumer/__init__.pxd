# Fetched records.
