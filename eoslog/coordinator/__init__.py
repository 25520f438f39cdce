"""Leaders of the internal topics: transactions, groups, their offsets, producer ids."""
