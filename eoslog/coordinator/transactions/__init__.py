"""The transaction coordinator: requests, log, markers and recovery."""
