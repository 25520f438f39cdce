"""What must hold after a fault: of a directory, and of every reader and deletion."""
