"""The group coordinator: membership, assignment and committed offsets."""
