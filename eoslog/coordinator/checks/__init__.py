"""Check-back: asks resolvers about prepared transactions."""
