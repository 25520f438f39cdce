"""The consumer: positions, groups and committed offsets."""
