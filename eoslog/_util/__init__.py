"""Helpers above the layer of errors: arguments of calls, closing, extras."""
