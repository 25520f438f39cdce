"""Producers with a name, which drop records with publishing ids that were used."""
