"""Slow, obvious models to compare with: bytes (`codec`) and a log (`model_log`)."""
