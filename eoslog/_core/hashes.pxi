# Checksums and hashes as Python sees them.
