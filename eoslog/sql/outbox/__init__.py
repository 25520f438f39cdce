"""The outbox: rows of a table become records of topics, each once."""
