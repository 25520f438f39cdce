"""Causes that block readers: found on request, and warned about."""
