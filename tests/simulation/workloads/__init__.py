"""What the simulated processes do."""
