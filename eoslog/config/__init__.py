"""Configuration: keys, parsers of their values, and keys of other clients."""
