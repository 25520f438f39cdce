# Checksums and hashes.
