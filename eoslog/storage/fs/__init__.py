"""File calls, failpoints, file systems and open files."""
