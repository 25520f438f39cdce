"""Applications: `eoslog.App`."""
