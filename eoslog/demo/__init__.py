"""`eoslog demo`: real data through every guarantee of the log, fully checked."""
