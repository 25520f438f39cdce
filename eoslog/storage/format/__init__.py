"""Formats on disk: primitive encodings, codecs, old messages, checkpoint files."""
