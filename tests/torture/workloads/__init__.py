"""The workloads that run during the faults: mixed, bank, and a program that ends."""
