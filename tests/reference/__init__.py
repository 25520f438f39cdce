"""Slow and obvious models that the real code is compared with: bytes (`codec`) and a log (`model_log`)."""
