"""`eoslog demo`: real data put through every promise of the log, checked to the last digit."""
