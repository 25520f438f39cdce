"""The simulated machine: processes, clocks, a disk, and the seam to eoslog."""
