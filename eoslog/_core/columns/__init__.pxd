# Columns for Arrow.
