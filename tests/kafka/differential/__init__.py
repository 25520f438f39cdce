"""The same requests to a real broker and to eoslog.

Run it as `python -m tests.kafka.differential`.
"""
