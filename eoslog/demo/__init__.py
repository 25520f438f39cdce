"""`eoslog demo`: a real data set taken through every promise of the log, then checked to the last digit."""
