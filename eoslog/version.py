"""The version, apart from everything that must be compiled to be imported."""

__version__ = "0.1.0"
