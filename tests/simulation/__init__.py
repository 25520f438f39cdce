"""The deterministic simulator: several processes, one disk that crashes, one seed.

`python -m tests.simulation --seconds N --seed S`; how it works and what it cannot see: `docs/simulation.md`.
"""
