"""Tests of eoslog; they mirror the package's tree, plus `reference`, `properties`, `faults` and `rows`."""
