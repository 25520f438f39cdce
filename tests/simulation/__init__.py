"""The deterministic simulator: several processes, one crashing disk, one seed.

Run it as `python -m tests.simulation --seconds N --seed S`. `docs/contributing/simulator.md`
says how it works and what it cannot see.
"""
